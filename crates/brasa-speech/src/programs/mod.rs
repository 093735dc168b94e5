//! An encoder's and a decoder's graph on a device, as a recogniser.
//!
//! Both graphs share one pool: the encoder writes a window's memory, all texts over the window read it. Texts that have a beginning
//! in common share its pages until one of them writes there.

mod keys;
mod pages;

use std::collections::BTreeMap;
use std::sync::Arc;

use brasa_audio::{Features, WINDOW_FRAMES};
use brasa_graph::device::{Backend, KvPool, KvPoolSpec, KvType, Program, ProgramLimits, WeightSet};
use brasa_graph::step::{BlockTable, GivenValues, Outs, PAGE_POSITIONS, PageId, Segment, SequenceId, Step};
use brasa_graph::{CacheKind, Graph, GroupId, ValueId};

use crate::recogniser::{CrossScores, Recogniser, Rows, Shape, TextId, WindowId};
use crate::{Result, SpeechError};
use keys::memory_keys;
use pages::Pages;

/// Most texts of a step.
const MOST_TEXTS: usize = 64;

/// The graphs of a speech model, and the facts about them that the procedure needs.
#[derive(Clone, Debug)]
pub struct SpeechGraphs {
    /// Mel frames to memories.
    pub encoder: Arc<Graph>,
    /// Token ids to logits, over the same caches and memories.
    pub decoder: Arc<Graph>,
    /// The decoder's queries to each memory, `[Rows, heads, head_dim]`.
    pub cross_queries: Vec<ValueId>,
    /// Layer and head of each head that aligns text with sound.
    pub alignment_heads: Vec<(usize, usize)>,
    /// Width of the logits.
    pub vocab_size: usize,
    /// Most tokens of a text.
    pub text_context: usize,
    /// Mel bins of a frame.
    pub mel_bins: usize,
    /// Rows of an encoded window.
    pub positions: usize,
    /// Heads of the decoder.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

/// A model of speech on a device.
pub struct Programs {
    graphs: SpeechGraphs,
    device: Arc<dyn Backend>,
    weights: Arc<dyn WeightSet>,
    encoder: Box<dyn Program>,
    decoder: Box<dyn Program>,
    /// The decoder that ends in queries; made when it is first asked for.
    aligner: Option<Box<dyn Program>>,
    pool: Box<dyn KvPool>,
    /// Pages of texts and of memories.
    pages: [Pages; 2],
    groups: usize,
    windows: BTreeMap<WindowId, Vec<PageId>>,
    texts: BTreeMap<TextId, Text>,
    made: u64,
    max_windows: usize,
    logits: Vec<f32>,
}

#[derive(Clone, Debug)]
struct Text {
    window: WindowId,
    tokens: usize,
    pages: Vec<PageId>,
}

/// The place of texts among [`Programs::pages`].
const OF_TEXTS: usize = 0;
/// The place of memories among [`Programs::pages`].
const OF_MEMORIES: usize = 1;

impl Programs {
    /// Compiles both graphs over `weights`, to which theirs have been added. Encodes at most `max_windows` windows at once.
    ///
    /// # Errors
    ///
    /// [`SpeechError::Options`] for graphs of other windows than 30 s, or for keys that are neither f32 nor f16; errors of the
    /// device.
    ///
    /// # Panics
    ///
    /// If the decoder has no caches or no memories.
    pub fn new(
        device: Arc<dyn Backend>,
        weights: Arc<dyn WeightSet>,
        graphs: SpeechGraphs,
        kv_type: KvType,
        max_windows: usize,
    ) -> Result<Self> {
        let bad = |what: String| Err(SpeechError::Options { what });
        if 2 * graphs.positions != WINDOW_FRAMES {
            let expected = WINDOW_FRAMES / 2;
            return bad(format!("windows of {} rows, expected {expected}: 30 s", graphs.positions));
        }
        if !matches!(kv_type, KvType::F32 | KvType::F16) {
            return bad("keys and values of a model of speech are f32 or f16".into());
        }
        let (layers, heads) = (graphs.cross_queries.len(), graphs.heads);
        let outside = |&&(layer, head): &&(usize, usize)| layer >= layers || head >= heads;
        if let Some((layer, head)) = graphs.alignment_heads.iter().find(outside) {
            return bad(format!(
                "alignment head {head} of layer {layer}: there are {heads} of {layers} layers"
            ));
        }
        let groups = graphs.decoder.cache_groups();
        let place = |kind| {
            let found = groups.iter().position(|group| group.kind == kind);
            GroupId(found.expect("a decoder with caches and memories") as u32)
        };
        let pages = [Pages::new(place(CacheKind::Text)), Pages::new(place(CacheKind::Memory))];
        let limits = |max_rows, max_outs, max_segments| ProgramLimits { max_rows, max_outs, max_segments };
        let max_windows = max_windows.max(1);
        let encoder_limits = limits(graphs.positions * max_windows, 1, max_windows);
        let decoder_limits = limits(graphs.text_context.max(MOST_TEXTS), MOST_TEXTS, MOST_TEXTS);
        let encoder = device.compile(
            Arc::clone(&graphs.encoder),
            Arc::clone(&weights),
            encoder_limits.with(kv_type),
        )?;
        let decoder = device.compile(
            Arc::clone(&graphs.decoder),
            Arc::clone(&weights),
            decoder_limits.with(kv_type),
        )?;
        let count = groups.len();
        let pool = device.kv_pool(KvPoolSpec::of(&graphs.decoder, kv_type))?;
        Ok(Self {
            graphs,
            device,
            weights,
            encoder,
            decoder,
            aligner: None,
            pool,
            pages,
            groups: count,
            windows: BTreeMap::new(),
            texts: BTreeMap::new(),
            made: 0,
            max_windows,
            logits: Vec::new(),
        })
    }

    /// Pages that texts and windows hold.
    pub fn pages_held(&self) -> usize {
        self.pages.iter().map(Pages::held).sum()
    }

    fn group(&self, place: usize) -> GroupId {
        self.pages[place].group()
    }

    /// Block tables of a text over a window.
    fn tables(&self, text: &[PageId], memory: &[PageId]) -> Vec<BlockTable> {
        let mut tables = vec![BlockTable::new(); self.groups];
        for (place, pages) in [(OF_TEXTS, text), (OF_MEMORIES, memory)] {
            tables[self.group(place).0 as usize] = pages.iter().copied().map(Some).collect();
        }
        tables
    }

    /// Gives a text pages of its own for `count` tokens more.
    fn make_room(&mut self, id: TextId, count: usize) -> Result<()> {
        let Self { texts, pages: [pages, _], pool, .. } = self;
        let text = texts.get_mut(&id).expect("a text that has not ended");
        let filled = text.tokens % PAGE_POSITIONS;
        if filled > 0
            && let Some(last) = text.pages.last_mut()
            && pages.is_shared(*last)
        {
            let own = pages.take(&mut **pool)?;
            if let Err(error) = pool.copy_page(pages.group(), *last, own, filled) {
                pages.release(own);
                return Err(error.into());
            }
            pages.release(std::mem::replace(last, own));
        }
        while text.pages.len() * PAGE_POSITIONS < text.tokens + count {
            text.pages.push(pages.take(&mut **pool)?);
        }
        Ok(())
    }

    fn segment(&mut self, rows: &Rows) -> Result<Segment> {
        self.make_room(rows.text, rows.tokens.len())?;
        let text = &self.texts[&rows.text];
        let tables = self.tables(&text.pages, &self.windows[&text.window]);
        let sequence = SequenceId(rows.text.0);
        let segment = Segment::text(sequence, text.tokens, rows.tokens.clone(), rows.outs.clone(), tables);
        Ok(Segment { memory_rows: self.graphs.positions, ..segment })
    }

    fn add_text(&mut self, text: Text) -> TextId {
        self.made += 1;
        let id = TextId(self.made);
        self.texts.insert(id, text);
        id
    }

    /// The queries of the aligning layers, `[layers][tokens · heads · head_dim]`.
    fn queries(&mut self, window: WindowId, tokens: &[u32], layers: &[usize]) -> Result<Vec<Vec<f32>>> {
        if self.aligner.is_none() {
            let values: Vec<ValueId> = layers.iter().map(|&layer| self.graphs.cross_queries[layer]).collect();
            let graph = brasa_graph::pass::prune(&Graph::clone(&self.graphs.decoder).returning(&values));
            let limits = ProgramLimits { max_rows: self.graphs.text_context, max_outs: 1, max_segments: 1 };
            self.weights.add(&graph, &mut |_| std::ops::ControlFlow::Continue(()))?;
            self.aligner = Some(self.device.compile(
                Arc::new(graph),
                Arc::clone(&self.weights),
                limits.with(self.pool.spec().dtype),
            )?);
        }
        let text = self.begin(window)?;
        let rows = Rows { text, tokens: tokens.to_vec(), outs: Outs::None };
        let segment = self.segment(&rows);
        let found = segment.and_then(|segment| {
            let Self { aligner, pool, .. } = self;
            let program = aligner.as_mut().expect("made above");
            let outputs = program.run(&Step { segments: vec![segment] }, &mut **pool)?;
            Ok(outputs.iter().map(|output| output.floats().to_vec()).collect())
        });
        self.end(text);
        found
    }
}

impl Recogniser for Programs {
    fn shape(&self) -> Shape {
        Shape {
            vocab_size: self.graphs.vocab_size,
            text_context: self.graphs.text_context,
            mel_bins: self.graphs.mel_bins,
            positions: self.graphs.positions,
            max_windows: self.max_windows,
            max_rows: self.graphs.text_context.max(MOST_TEXTS),
            max_outs: MOST_TEXTS,
        }
    }

    fn encode(&mut self, windows: &[&Features]) -> Result<Vec<WindowId>> {
        let positions = self.graphs.positions;
        let mut ids = Vec::with_capacity(windows.len());
        let mut segments = Vec::with_capacity(windows.len());
        for mel in windows {
            self.made += 1;
            let id = WindowId(self.made);
            ids.push(id);
            let memory = self.windows.entry(id).or_default();
            let mut failed = Ok(());
            while memory.len() * PAGE_POSITIONS < positions && failed.is_ok() {
                match self.pages[OF_MEMORIES].take(&mut *self.pool) {
                    Ok(page) => memory.push(page),
                    Err(error) => failed = Err(error),
                }
            }
            if let Err(error) = failed {
                for id in ids {
                    self.forget(id);
                }
                return Err(error);
            }
            let tables = self.tables(&[], &self.windows[&id]);
            let empty = Segment::text(SequenceId(id.0), 0, Vec::new(), Outs::None, tables);
            let given = vec![GivenValues::F32(mel.values().into())];
            segments.push(Segment { rows: positions, given, ..empty });
        }
        let done = self.encoder.run(&Step { segments }, &mut *self.pool).map(|_| ());
        if let Err(error) = done {
            for id in ids {
                self.forget(id);
            }
            return Err(error.into());
        }
        Ok(ids)
    }

    fn forget(&mut self, window: WindowId) {
        for page in self.windows.remove(&window).unwrap_or_default() {
            self.pages[OF_MEMORIES].release(page);
        }
    }

    fn begin(&mut self, window: WindowId) -> Result<TextId> {
        Ok(self.add_text(Text { window, tokens: 0, pages: Vec::new() }))
    }

    fn fork(&mut self, text: TextId) -> Result<TextId> {
        let copy = self.texts[&text].clone();
        for &page in &copy.pages {
            self.pages[OF_TEXTS].share(page);
        }
        Ok(self.add_text(copy))
    }

    fn end(&mut self, text: TextId) {
        for page in self.texts.remove(&text).map(|text| text.pages).unwrap_or_default() {
            self.pages[OF_TEXTS].release(page);
        }
    }

    fn run(&mut self, rows: &[Rows]) -> Result<&[f32]> {
        let segments = rows.iter().map(|rows| self.segment(rows)).collect::<Result<_>>()?;
        let outputs = self.decoder.run(&Step { segments }, &mut *self.pool)?;
        self.logits.clear();
        self.logits.extend_from_slice(outputs.only().floats());
        for rows in rows {
            if let Some(text) = self.texts.get_mut(&rows.text) {
                text.tokens += rows.tokens.len();
            }
        }
        Ok(&self.logits)
    }

    fn cross_scores(&mut self, window: WindowId, tokens: &[u32]) -> Result<CrossScores> {
        let mut layers: Vec<usize> = self.graphs.alignment_heads.iter().map(|(layer, _)| *layer).collect();
        layers.sort_unstable();
        layers.dedup();
        let queries = self.queries(window, tokens, &layers)?;
        let keys =
            memory_keys(&*self.pool, self.group(OF_MEMORIES), &self.windows[&window], self.graphs.positions)?;
        let (heads, width, positions) = (self.graphs.heads, self.graphs.head_dim, self.graphs.positions);
        let scale = (width as f32).powf(-0.5);
        let mut values = Vec::with_capacity(self.graphs.alignment_heads.len() * tokens.len() * positions);
        for &(layer, head) in &self.graphs.alignment_heads {
            let place = layers.iter().position(|&other| other == layer).expect("one of the layers");
            let keys = keys.head(layer, head);
            for row in queries[place].chunks_exact(heads * width) {
                let query = &row[head * width..(head + 1) * width];
                let score = |key: &[f32]| scale * query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>();
                values.extend(keys.chunks_exact(width).map(score));
            }
        }
        Ok(CrossScores { values, heads: self.graphs.alignment_heads.len(), tokens: tokens.len() })
    }
}
