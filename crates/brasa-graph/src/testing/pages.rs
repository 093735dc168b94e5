//! Checks of pages that are copied, read and written, and of texts that continue from such pages in another pool.

use std::sync::Arc;

use brasa_formats::StorageFormat;

use crate::device::{Backend, DeviceError, KvPool, KvPoolSpec, KvType, Precision};
use crate::page::PageLayout;
use crate::reference::ReferenceBackend;
use crate::step::{PAGE_POSITIONS, PageId, Segment, Step};
use crate::{Graph, GroupId, ValueWidth};

use super::{Decoder, Random, Running, Tolerance, assert_same_bits, compare, tokens};

/// The pages of a text by cache group and entry of its block table; `None` if the text has no page.
type Pages = Vec<Vec<Option<Vec<u8>>>>;

/// Checks the pages of a device in every element type: copies, bytes in the canonical layout, counters, refusals, and texts that
/// continue with the same values: in another pool of the device, after a way over the reference, and on the reference.
///
/// # Panics
///
/// If the device behaves in another way.
pub fn check_pages(device: &dyn Backend) {
    // Two cache groups, one with two caches; heads that are neither whole vectors nor whole blocks of q8; values as wide as keys, wider,
    // and within keys.
    let decoder = Decoder {
        hidden: 32,
        heads: 2,
        head_dim: 40,
        feed_forward: 32,
        windows: vec![None, Some(100), None],
        ..Decoder::small(StorageFormat::F32)
    };
    let values_of_other_widths = [
        None,
        Some(ValueWidth::Own(48)),
        Some(ValueWidth::PrefixOfKey(36)),
        Some(ValueWidth::PrefixOfKey(24)),
    ];
    for value in values_of_other_widths {
        let graph = Arc::new(Decoder { value, sinks: value.is_some(), ..decoder.clone() }.graph(11));
        for (kv, tolerance) in [
            (KvType::F16, Tolerance::F16),
            (KvType::F32, Tolerance::F32),
            (KvType::BF16, Tolerance::BITS_16),
            (KvType::Q8, Tolerance::BITS_16),
        ] {
            check_moves(device, &graph, kv, tolerance);
            check_bytes(device, &graph, kv);
        }
        check_refusals(device, &graph);
    }
}

/// A text and its next rows: two pages in f16, the first of which has left the window, and one page in other types.
fn text(device: &dyn Backend, graph: &Arc<Graph>, kv: KvType) -> (Running, Segment) {
    let mut running = Running::new(device, graph, Precision::Reference, kv);
    running.step(&[(2, &tokens(5, 1))]);
    let rows = if kv == KvType::F16 { 400 } else { 30 };
    running.chunked(1, &tokens(rows, 2), &[300]);
    let next = running.segment(1, &tokens(3, 3));
    let left_behind = next.pages.iter().flatten().filter(|page| page.is_none()).count();
    assert_eq!(left_behind, usize::from(kv == KvType::F16), "pages behind the window");
    (running, next)
}

/// Checks that a text goes on with the same values behind pages that were copied, and behind pages that moved: to another pool of the
/// device, and, within `tolerance`, to the reference and back. The graph goes from token ids below 150 to logits, and one of its cache
/// groups has a window of at most 100 positions.
///
/// # Panics
///
/// If a value differs.
pub fn check_moves(device: &dyn Backend, graph: &Arc<Graph>, kv: KvType, tolerance: Tolerance) {
    let label = format!("{kv:?} on {}", device.info().name);
    let (mut running, next) = text(device, graph, kv);
    let pages = read_all(&*running.pool, &next);
    let copied = copies(&mut *running.pool, &next);
    let expected = running.run(vec![next.clone()]);
    assert_same_bits(&running.run(vec![copied]), &expected, &format!("{label}, copied pages"));

    // A device computes with any bits, whatever comes out, and keeps nothing of them.
    let mut random = Random::new(8);
    let mut noise = pages.clone();
    for bytes in noise.iter_mut().flatten().flatten() {
        bytes.fill_with(|| random.below(256) as u8);
    }
    overwrite(&mut *running.pool, &noise, &next);
    let noisy = running.program.run(&Step { segments: vec![next.clone()] }, &mut *running.pool);
    assert_eq!(noisy.map(|outputs| outputs.only().rows()), Ok(3), "{label}, noise");
    overwrite(&mut *running.pool, &pages, &next);
    assert_same_bits(&running.run(vec![next.clone()]), &expected, &format!("{label}, behind noise"));

    let go_on = |device: &dyn Backend, pages: &Pages, next: &Segment| {
        let mut other = Running::new(device, graph, Precision::Reference, kv);
        let moved = write_all(&mut *other.pool, pages, next);
        assert_eq!(&read_all(&*other.pool, &moved), pages, "{label}: pages on {}", device.info().name);
        other.run(vec![moved])
    };
    assert_same_bits(&go_on(device, &pages, &next), &expected, &format!("{label}, another pool"));

    // `go_on` has checked that the reference gives back what it got.
    let on_reference = compare(&go_on(&ReferenceBackend, &pages, &next), &expected);
    assert!(on_reference.within(tolerance), "{label}, to the reference: {on_reference}");
    let (mut reference, next) = text(&ReferenceBackend, graph, kv);
    let pages = read_all(&*reference.pool, &next);
    let expected = reference.run(vec![next.clone()]);
    let of_reference = compare(&go_on(device, &pages, &next), &expected);
    assert!(of_reference.within(tolerance), "{label}, from the reference: {of_reference}");
}

/// Checks that pages may hold any bits, and keep them while the pool grows.
fn check_bytes(device: &dyn Backend, graph: &Graph, kv: KvType) {
    let spec = KvPoolSpec::of(graph, kv);
    let mut pool = device.kv_pool(spec.clone()).expect("a pool");
    let mut random = Random::new(7);
    let mut expected_bytes = 0;
    for (number, capacity) in (0..spec.groups.len()).zip([3, 5]) {
        let group = GroupId(number as u32);
        let layout = PageLayout::of(&spec, group).expect("a group of the pool");
        pool.reserve(group, 2).expect("pages");
        let contents: Vec<Vec<u8>> =
            (0..2).map(|_| (0..layout.size_bytes()).map(|_| random.below(256) as u8).collect()).collect();
        for (page, bytes) in contents.iter().enumerate() {
            pool.write_page(group, PageId::from_index(page), bytes).expect("a page");
        }
        for pages in [capacity, 1] {
            pool.reserve(group, pages).expect("pages");
            assert_eq!(pool.capacity(group), capacity, "a pool grows and never shrinks");
        }
        for (page, bytes) in contents.iter().enumerate() {
            assert_eq!(&read(&*pool, group, PageId::from_index(page)), bytes, "{kv:?}, group {number}");
        }
        assert!(pool.page_bytes(group) >= layout.size_bytes() as u64, "all bits fit");
        expected_bytes += pool.page_bytes(group) * capacity as u64;
        assert_eq!(pool.size_bytes(), expected_bytes, "{kv:?}, group {number}");
    }
}

fn check_refusals(device: &dyn Backend, graph: &Graph) {
    let spec = KvPoolSpec::of(graph, KvType::Q8);
    let mut pool = device.kv_pool(spec).expect("a pool");
    let (known, unknown) = (GroupId(1), GroupId(2));
    let page = PageId::from_index;
    pool.reserve(known, 2).expect("pages");
    let bytes = read(&*pool, known, page(1));
    let refuse = |result: Result<(), DeviceError>, expected: DeviceError| {
        assert_eq!(result, Err(expected), "{}", device.info().name);
    };
    let no_group = DeviceError::UnknownGroup { group: 2, groups: 2 };
    let no_page = |page| DeviceError::UnknownPage { group: 1, page, pages: 2 };
    let other_length = |found| DeviceError::PageBytes { group: 1, found, expected: bytes.len() };
    let mut buffer = bytes.clone();
    refuse(pool.reserve(unknown, 1), no_group.clone());
    refuse(pool.copy_page(unknown, page(0), page(1), 1), no_group.clone());
    refuse(pool.read_page(unknown, page(0), &mut buffer), no_group.clone());
    refuse(pool.write_page(unknown, page(0), &bytes), no_group);
    assert_eq!((pool.capacity(unknown), pool.page_bytes(unknown)), (0, 0));
    refuse(pool.copy_page(known, page(2), page(1), 1), no_page(2));
    refuse(pool.copy_page(known, page(1), page(7), 1), no_page(7));
    refuse(pool.read_page(known, page(2), &mut buffer), no_page(2));
    refuse(pool.write_page(known, page(2), &bytes), no_page(2));
    for length in [0, bytes.len() - 1, bytes.len() + 1] {
        let mut buffer = vec![7; length];
        refuse(pool.read_page(known, page(1), &mut buffer), other_length(length));
        assert!(buffer.iter().all(|&byte| byte == 7), "nothing was copied");
        refuse(pool.write_page(known, page(1), &buffer), other_length(length));
    }
    assert_eq!(read(&*pool, known, page(1)), bytes, "nothing was written");
    let refused = pool.reserve(known, usize::MAX / 2);
    assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })), "{refused:?}");
    assert_eq!(pool.capacity(known), 2);
}

fn read(pool: &dyn KvPool, group: GroupId, page: PageId) -> Vec<u8> {
    let layout = PageLayout::of(pool.spec(), group).expect("a group of the pool");
    let mut bytes = vec![0; layout.size_bytes()];
    pool.read_page(group, page, &mut bytes).expect("a page of the pool");
    bytes
}

/// The pages that a segment names.
fn read_all(pool: &dyn KvPool, segment: &Segment) -> Pages {
    let tables = segment.pages.iter().enumerate();
    let read = |group, page| read(pool, GroupId(group as u32), page);
    tables
        .map(|(group, table)| table.iter().map(|page| page.map(|page| read(group, page))).collect())
        .collect()
}

/// Writes `pages` over the pages that a segment names.
fn overwrite(pool: &mut dyn KvPool, pages: &Pages, segment: &Segment) {
    for (number, (table, pages)) in segment.pages.iter().zip(pages).enumerate() {
        for (page, bytes) in table.iter().flatten().zip(pages.iter().flatten()) {
            pool.write_page(GroupId(number as u32), *page, bytes).expect("a page of the pool");
        }
    }
}

/// Writes the pages of a text into an empty pool, the last page first. Returns the text's next rows with block tables for that
/// pool.
fn write_all(pool: &mut dyn KvPool, pages: &Pages, next: &Segment) -> Segment {
    let mut moved = next.clone();
    for (number, (table, pages)) in moved.pages.iter_mut().zip(pages).enumerate() {
        let group = GroupId(number as u32);
        pool.reserve(group, pages.len()).expect("pages");
        for (entry, place) in table.iter_mut().enumerate() {
            *place = place.map(|_| PageId::from_index(pages.len() - 1 - entry));
        }
    }
    overwrite(pool, pages, &moved);
    moved
}

/// Copies each page that a segment names, as far as the segment sees it, to a new page. Returns the segment with the copies.
fn copies(pool: &mut dyn KvPool, segment: &Segment) -> Segment {
    let mut copied = segment.clone();
    for (number, table) in copied.pages.iter_mut().enumerate() {
        let group = GroupId(number as u32);
        for (entry, page) in table.iter_mut().enumerate() {
            let Some(page) = page else { continue };
            let positions = segment.first_index.saturating_sub(entry * PAGE_POSITIONS);
            let copy = PageId::from_index(pool.capacity(group));
            pool.reserve(group, copy.index() + 1).expect("a page");
            pool.copy_page(group, *page, copy, positions).expect("two pages of the pool");
            pool.copy_page(group, copy, copy, positions).expect("a copy to itself changes nothing");
            *page = copy;
        }
    }
    copied
}
