//! A GPU that was lost: whatever used it ends, and it is made anew where the driver allows that; elsewhere the refusal says that a new process is needed.

use std::sync::Arc;

use brasa_cuda::{CudaBackend, CudaOptions};
use brasa_formats::StorageFormat;
use brasa_graph::device::{Backend, DeviceError, KvType, LostPart, Precision};
use brasa_graph::step::{Segment, Step};
use brasa_graph::testing::{Decoder, Running, tokens};

use crate::device::{backend, device, is_emulated, try_backend};

/// A model on a backend, and the next rows of its text.
fn model(backend: &CudaBackend) -> (Running, Segment) {
    let graph = Arc::new(Decoder { windows: vec![None], ..Decoder::small(StorageFormat::F16) }.graph(2));
    let mut running = Running::new(backend, &graph, Precision::Fast, KvType::F16);
    let segment = running.segment(1, &tokens(3, 1));
    (running, segment)
}

/// Loses the GPU, which takes whatever else this process has there with it: in a process of its own.
fn lose_and_make_anew() {
    let Some(first) = backend(&CudaOptions::default()) else { return };
    let second = backend(&CudaOptions::default()).unwrap();
    let (mut one, rows) = model(&first);
    let (mut other, of_other) = model(&second);
    let expected = one.run(vec![rows.clone()]);
    assert_eq!((first.lost(), second.lost()), (None, None));

    let lost = first.lose();
    assert!(matches!(lost, Err(DeviceError::Lost { part: LostPart::Context, .. })), "{lost:?}");
    assert!(first.lost().is_some_and(|reason| reason.contains("ILLEGAL_ADDRESS")), "{:?}", first.lost());
    assert_eq!(first.lost(), second.lost(), "backends that share a context");
    for (running, segment) in [(&mut one, &rows), (&mut other, &of_other)] {
        let step = Step { segments: vec![segment.clone()] };
        for _ in 0..2 {
            let refused = running.program.run(&step, &mut *running.pool).map(drop);
            let all = matches!(refused, Err(DeviceError::Lost { part: LostPart::Context, .. }));
            assert!(all, "{refused:?}");
        }
    }
    assert_eq!(first.free_bytes(), None);

    if let Some(Err(DeviceError::Lost { part: LostPart::Device, reason, .. })) =
        try_backend(&CudaOptions::default())
    {
        assert!(!is_emulated(&first), "the emulated driver makes it anew");
        assert!(reason.contains("only a new process can use it again"), "{reason}");
        return;
    }
    // While weights and programs of the lost device still exist, then without them, and again.
    for _ in 0..2 {
        let anew = backend(&CudaOptions::default()).unwrap();
        let (mut running, segment) = model(&anew);
        assert_eq!(running.run(vec![segment]), expected, "a device that was made anew");
        drop((running, anew));
    }
    let held = one.pool.size_bytes();
    assert!(held > 0);
    drop((one, other, first, second));
    for _ in 0..2 {
        let anew = backend(&CudaOptions::default()).unwrap();
        let (mut running, segment) = model(&anew);
        assert_eq!(running.run(vec![segment]), expected, "behind the end of all that was lost");
        let used = anew.memory_use().unwrap();
        assert!(used.most_held_bytes >= used.held_bytes && used.held_bytes > 0, "{used:?}");
        let _ = anew.lose();
        assert!(anew.lost().is_some());
    }
}

/// The variable by which the test asks for its child.
const CHILD: &str = "BRASA_CUDA_LOSES";

#[test]
fn a_lost_gpu_ends_its_users_and_is_made_anew_where_that_is_possible() {
    if std::env::var_os(CHILD).is_some() {
        return lose_and_make_anew();
    }
    if device().is_none() {
        return;
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "lost::a_lost_gpu_ends_its_users_and_is_made_anew_where_that_is_possible",
            "--exact",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = [child.stdout, child.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(child.status.success(), "{}", said.concat());
}
