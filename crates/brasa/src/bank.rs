//! The adapters that requests of a loaded model choose among, while adapters come and go.
//!
//! The model's graph has the products of all adapters of the bank beside its own (`add_low_rank_bank`). A changed bank needs
//! another graph. Its program is compiled beside the running one, over the same weights plus the new adapters' matrices, and
//! replaces the running program between two steps.
//!
//! An adapter is held by a number of its *content*. A name that is loaded again with other content is another adapter: requests
//! that began with the old one go on with it, and no cached text of the old one is found by new requests. An adapter without a
//! name leaves the bank when its last request has ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use brasa_engine::{AdapterRows, Engine, MakeProgram};
use brasa_graph::Graph;
use brasa_graph::device::{Program, ProgramSpec};
use brasa_graph::pass::{LowRank, add_low_rank_bank};
use brasa_models::ModelError;
use sha2::{Digest, Sha256};

use crate::adapter::{self, Fitted};
use crate::inside::LoadedDevice;
use crate::model::WeakModel;
use crate::{AdapterInfo, AdapterSource, Error, Model};

/// Time that a request has between the choice of its adapters and its start.
const GRACE: Duration = Duration::from_secs(2);

/// Pause between two looks whether an adapter is still in use.
const TIDY_PAUSE: Duration = Duration::from_millis(200);

/// Most bytes of an adapter's name.
const MOST_NAME_BYTES: usize = 256;

/// The adapters of a loaded model.
pub(crate) struct Bank {
    /// The model without the bank's adapters.
    base: brasa_models::Model,
    device: Arc<LoadedDevice>,
    program_spec: ProgramSpec,
    /// The scales of each row's adapters; `None` if all texts have the adapters that the model was loaded with.
    rows: Option<Arc<AdapterRows>>,
    /// Lock for compiling another bank.
    changing: Mutex<()>,
    state: Mutex<State>,
}

struct State {
    named: Vec<Named>,
    held: Vec<Held>,
    /// The graph of the running program.
    graph: Arc<Graph>,
    next_id: usize,
    /// True while a thread waits for the end of requests whose adapters have no name any more.
    tidying: bool,
}

/// An adapter that requests can choose.
struct Named {
    info: AdapterInfo,
    content: u64,
}

/// An adapter of the running program.
#[derive(Clone)]
struct Held {
    content: u64,
    low_ranks: Arc<[LowRank]>,
}

/// A bank of adapters and the program compiled for it.
struct Compiled {
    held: Vec<Held>,
    graph: Arc<Graph>,
    program: Box<dyn Program>,
    hidden: MakeProgram,
}

/// The graph of `base` with the low-rank products of the adapters `held`.
fn graph_of(base: &brasa_models::Model, held: &[Held]) -> Result<Graph, Error> {
    if held.is_empty() {
        return Ok(base.graph.clone());
    }
    let bank: Vec<Vec<LowRank>> = held.iter().map(|held| held.low_ranks.to_vec()).collect();
    Ok(add_low_rank_bank(&base.graph, &bank).map_err(ModelError::from)?)
}

fn held_of(fitted: &[Fitted]) -> Vec<Held> {
    let mut held: Vec<Held> = Vec::new();
    for Fitted { content, low_ranks, .. } in fitted {
        if held.iter().all(|held| held.content != *content) {
            held.push(Held { content: *content, low_ranks: low_ranks.clone().into() });
        }
    }
    held
}

/// The adapters that a model is loaded with, before it has a device.
pub(crate) struct Opened {
    base: brasa_models::Model,
    fitted: Vec<Fitted>,
    by_request: bool,
}

impl Opened {
    /// Adds the adapters to the model's graph: for all texts, or as a bank for requests to choose from.
    ///
    /// # Errors
    ///
    /// [`Error::Model`].
    pub fn new(
        model: &mut brasa_models::Model,
        fitted: Vec<Fitted>,
        by_request: bool,
    ) -> Result<Self, Error> {
        let by_request = by_request || fitted.is_empty();
        if !by_request {
            adapter::apply(&fitted, model)?;
        }
        let base = model.clone();
        if by_request {
            model.graph = graph_of(&base, &held_of(&fitted))?;
        }
        Ok(Self { base, fitted, by_request })
    }

    /// The graph without the adapters that requests may choose.
    pub fn base_graph(&self) -> Graph {
        self.base.graph.clone()
    }

    /// The bank beside a program of `graph` on `device`.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] for a scale that is no finite number.
    pub fn bank(
        self,
        graph: Arc<Graph>,
        device: Arc<LoadedDevice>,
        program_spec: ProgramSpec,
    ) -> Result<Bank, Error> {
        let Self { base, fitted, by_request } = self;
        let held = if by_request { held_of(&fitted) } else { Vec::new() };
        let next_id = fitted.len();
        let named: Vec<Named> =
            fitted.into_iter().map(|Fitted { info, content, .. }| Named { info, content }).collect();
        let state = State { named, held, graph, next_id, tidying: false };
        let contents: Vec<u64> = state.held.iter().map(|held| held.content).collect();
        let rows = by_request.then(|| AdapterRows::new(&contents, &state.plain())).transpose()?;
        let (rows, changing, state) = (rows.map(Arc::new), Mutex::default(), Mutex::new(state));
        Ok(Bank { base, device, program_spec, rows, changing, state })
    }
}

impl State {
    /// The scales of a request that chooses no adapters, by the adapters' content.
    fn plain(&self) -> Vec<(u64, f32)> {
        let defaults = self.named.iter().filter(|named| named.info.is_default);
        mixture(defaults.map(|named| (named.content, named.info.scale)))
    }

    fn is_named(&self, content: u64) -> bool {
        self.named.iter().any(|named| named.content == content)
    }

    /// Updates the default scope to the present default adapters, if their scales differ from `before`.
    fn follow_defaults(&self, rows: &AdapterRows, before: &[(u64, f32)]) -> Result<(), Error> {
        let plain = self.plain();
        if plain != before {
            let number = number_of(&plain);
            rows.insert(number, &plain)?;
            rows.set_plain(number)?;
        }
        Ok(())
    }
}

/// Sums the scales of each adapter, by content; leaves out zeros.
fn mixture(scales: impl Iterator<Item = (u64, f32)>) -> Vec<(u64, f32)> {
    let mut sums: BTreeMap<u64, f32> = BTreeMap::new();
    for (content, scale) in scales {
        *sums.entry(content).or_default() += scale;
    }
    sums.into_iter().filter(|&(_, scale)| scale != 0.0).collect()
}

/// A hash of the adapters and scales of a mixture. A saved text finds the same scales by this number in another process.
fn number_of(mixture: &[(u64, f32)]) -> u64 {
    let mut hash = Sha256::new();
    for (content, scale) in mixture {
        hash.update(content.to_le_bytes());
        hash.update(scale.to_le_bytes());
    }
    hash.finalize().first_chunk().map_or(1, |bytes| u64::from_le_bytes(*bytes).max(1))
}

impl Bank {
    /// The scales of each row's adapters; `None` if requests cannot choose adapters.
    pub fn rows(&self) -> Option<&Arc<AdapterRows>> {
        self.rows.as_ref()
    }

    /// The running program's graph, and rows for another program of this graph. Their default scope has the adapters of `adapter`.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] for adapters that are not known.
    pub fn snapshot(&self, adapter: u64) -> Result<(Arc<Graph>, Option<Arc<AdapterRows>>), Error> {
        let state = self.state();
        let rows = self.rows.as_ref().map(|rows| rows.snapshot(adapter).map(Arc::new)).transpose()?;
        Ok((Arc::clone(&state.graph), rows))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn choosing(&self) -> Result<&Arc<AdapterRows>, Error> {
        self.rows.as_ref().ok_or_else(|| {
            Error::Options("this model was loaded with adapters that apply to all its texts".into())
        })
    }

    fn scope(&self, scales: &[(usize, f32)]) -> Result<u64, Error> {
        let rows = self.choosing()?;
        let state = self.state();
        let mut chosen: BTreeMap<usize, (u64, f32)> = BTreeMap::new();
        for &(id, scale) in scales {
            let named = state.named.iter().find(|named| named.info.id == id);
            let Some(named) = named else {
                return Err(Error::Options(format!("adapter {id} is not loaded")));
            };
            if !scale.is_finite() {
                let what = format!("adapter {id}: scale {scale}, expected a finite number");
                return Err(Error::Options(what));
            }
            chosen.insert(id, (named.content, scale));
        }
        let chosen = mixture(chosen.into_values());
        if chosen == state.plain() {
            return Ok(rows.plain());
        }
        let number = number_of(&chosen);
        rows.insert(number, &chosen)?;
        Ok(number)
    }

    fn load(&self, engine: &Engine, name: &str, source: &AdapterSource) -> Result<AdapterInfo, Error> {
        let rows = self.choosing()?;
        if name.is_empty() || name.len() > MOST_NAME_BYTES || name.contains([':', '/']) || has_control(name) {
            return Err(Error::Options(format!(
                "{name:?} is no name of an adapter: expected 1 to {MOST_NAME_BYTES} bytes without `:`, `/` and control characters"
            )));
        }
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let Fitted { mut info, low_ranks, content, .. } = adapter::fit(source, &self.base, true)?;
        let compiled = self.compiled(Some(Held { content, low_ranks: low_ranks.into() }))?;
        let mut state = self.state();
        let before = state.plain();
        if let Some(compiled) = compiled {
            state.exchange(engine, compiled)?;
        }
        info.name = name.into();
        if let Some(named) = state.named.iter_mut().find(|named| named.info.name == name) {
            (info.id, info.is_default) = (named.info.id, named.info.is_default);
            *named = Named { info: info.clone(), content };
        } else {
            info.id = state.next_id;
            state.next_id += 1;
            state.named.push(Named { info: info.clone(), content });
        }
        state.follow_defaults(rows, &before)?;
        Ok(info)
    }

    fn unload(&self, id: usize) -> Result<AdapterInfo, Error> {
        let rows = self.choosing()?;
        let mut state = self.state();
        let place = state.named.iter().position(|named| named.info.id == id);
        let place = place.ok_or_else(|| Error::Options(format!("adapter {id} is not loaded")))?;
        let before = state.plain();
        let named = state.named.remove(place);
        state.follow_defaults(rows, &before)?;
        Ok(named.info)
    }

    /// Compiles a program for the bank's adapters and the `wanted` one, without adapters that have neither name nor request;
    /// `None` if the running program already is this one.
    fn compiled(&self, wanted: Option<Held>) -> Result<Option<Compiled>, Error> {
        let state = self.state();
        let mut held = state.held.clone();
        let named: Vec<u64> = state.named.iter().map(|named| named.content).collect();
        drop(state);
        let before: Vec<u64> = held.iter().map(|held| held.content).collect();
        let wanted_content = wanted.as_ref().map(|wanted| wanted.content);
        held.extend(wanted.filter(|wanted| !before.contains(&wanted.content)));
        held.retain(|held| {
            named.contains(&held.content)
                || wanted_content == Some(held.content)
                || !self.rows.as_ref().is_some_and(|rows| rows.seal(held.content, GRACE))
        });
        if held.iter().map(|held| held.content).eq(before) {
            return Ok(None);
        }
        let mut adapted = self.base.clone();
        adapted.graph = graph_of(&self.base, &held)?;
        let hidden = Arc::new(adapted.hidden_graph());
        let graph = Arc::new(adapted.graph);
        self.device.weights.add(&graph, &mut |_| std::ops::ControlFlow::Continue(()))?;
        let program = self.device.program(&graph, self.program_spec)?;
        let (device, program_spec) = (Arc::clone(&self.device), self.program_spec);
        let hidden: MakeProgram = Box::new(move || device.program(&hidden, program_spec));
        Ok(Some(Compiled { held, graph, program, hidden }))
    }

    /// Removes adapters that have neither a name nor a request. Returns true if every remaining adapter has a name.
    fn tidy(&self, engine: &Engine) -> bool {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let compiled = self.compiled(None);
        let mut state = self.state();
        let exchanged = match compiled {
            Ok(Some(compiled)) => state.exchange(engine, compiled),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        // What cannot leave now leaves with the next change.
        let done = exchanged.is_err() || state.is_tidy();
        state.tidying = !done;
        done
    }
}

impl State {
    /// True if every adapter of the bank has a name.
    fn is_tidy(&self) -> bool {
        self.held.iter().all(|held| self.is_named(held.content))
    }

    fn exchange(&mut self, engine: &Engine, compiled: Compiled) -> Result<(), Error> {
        let Compiled { held, graph, program, hidden } = compiled;
        let contents = held.iter().map(|held| held.content).collect();
        engine.replace_program(program, Some(hidden), contents)?;
        (self.held, self.graph) = (held, graph);
        Ok(())
    }
}

fn has_control(name: &str) -> bool {
    name.chars().any(char::is_control)
}

impl Model {
    /// The model's adapters: those of [`LoadOptions::adapters`](crate::LoadOptions::adapters), and those loaded since.
    pub fn adapters(&self) -> Vec<AdapterInfo> {
        self.bank().state().named.iter().map(|named| named.info.clone()).collect()
    }

    /// The number for [`CacheScope::adapter`](crate::CacheScope::adapter) of requests with these adapters. Each is given by its
    /// [`id`](AdapterInfo::id) and a factor of its own scale. Adapters that are not listed do not affect the request.
    ///
    /// ```no_run
    /// use brasa::{AdapterSource, CacheScope, GenerateOptions, LoadOptions, Model, RequestOptions};
    ///
    /// let adapters = vec![AdapterSource::new("bard"), AdapterSource::new("clerk")];
    /// let options = LoadOptions { adapters, adapters_by_request: true, ..LoadOptions::default() };
    /// let model = Model::load("model.gguf", &options)?;
    /// let adapter = model.adapter_scope(&[(1, 0.8)])?;
    /// let cache_scope = CacheScope { adapter, ..CacheScope::default() };
    /// let request = RequestOptions { cache_scope, ..RequestOptions::default() };
    /// let stream = model.generate("Dear", &GenerateOptions { request, ..GenerateOptions::default() })?;
    /// # Ok::<(), brasa::Error>(())
    /// ```
    ///
    /// The number is good for a request that begins within two seconds. While the adapters stay loaded it is good for longer, as one of the
    /// 4,096 mixtures that were named last.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] for a model that was loaded with adapters but without
    /// [`LoadOptions::adapters_by_request`](crate::LoadOptions::adapters_by_request), for an adapter that is not loaded, and for a scale that is
    /// no finite number; [`Error::Engine`] if running requests have 4,096 different mixtures.
    pub fn adapter_scope(&self, scales: &[(usize, f32)]) -> Result<u64, Error> {
        self.bank().scope(scales)
    }

    /// Loads a low-rank adapter into the running model, under the name of its directory or file.
    ///
    /// Requests choose it from now on ([`adapter_scope`](Self::adapter_scope)); requests that choose none do not change. Running
    /// texts go on meanwhile. Costs the time and memory of another program over the model's weights, and of all adapters'
    /// matrices once more.
    ///
    /// If an adapter of the same name is loaded already, the new one takes its name and its id. Requests from now on use the new
    /// adapter, and running requests keep the old one until they end. No text that was cached with the old adapter is used with
    /// the new one.
    ///
    /// ```no_run
    /// use brasa::{AdapterSource, CacheScope, GenerateOptions, LoadOptions, Model, RequestOptions};
    ///
    /// let model = Model::load("model.gguf", &LoadOptions::default())?;
    /// let bard = model.load_adapter(&AdapterSource::new("bard"))?;
    /// let cache_scope = CacheScope { adapter: model.adapter_scope(&[(bard.id, bard.scale)])?, ..CacheScope::default() };
    /// let request = RequestOptions { cache_scope, ..RequestOptions::default() };
    /// let stream = model.generate("Dear", &GenerateOptions { request, ..GenerateOptions::default() })?;
    /// model.unload_adapter(bard.id)?;
    /// # Ok::<(), brasa::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of loading a model with the adapter: [`Error::Format`], [`Error::Adapter`], [`Error::Options`];
    /// [`Error::Options`] for a model that was loaded with adapters but without
    /// [`LoadOptions::adapters_by_request`](crate::LoadOptions::adapters_by_request); [`Error::Device`] for want of memory. The
    /// model's adapters are then unchanged.
    pub fn load_adapter(&self, source: &AdapterSource) -> Result<AdapterInfo, Error> {
        self.load_adapter_as(&source.name(), source)
    }

    /// Like [`load_adapter`](Self::load_adapter), under the name `name`.
    ///
    /// # Errors
    ///
    /// The errors of [`load_adapter`](Self::load_adapter), and [`Error::Options`] for a name that is empty, longer than 256 bytes, or has `:`,
    /// `/` or control characters.
    pub fn load_adapter_as(&self, name: &str, source: &AdapterSource) -> Result<AdapterInfo, Error> {
        let info = self.bank().load(self.engine(), name, source)?;
        self.tidy_adapters();
        Ok(info)
    }

    /// Unloads an adapter. Requests can no longer choose it, and running requests keep it until they end. The adapter's memory is
    /// freed then, but no sooner than two seconds after it was last chosen. If it is a [default](AdapterInfo::is_default), later
    /// requests that choose none do without it.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] for an adapter that is not loaded, and for a model that was loaded with adapters but without
    /// [`LoadOptions::adapters_by_request`](crate::LoadOptions::adapters_by_request).
    pub fn unload_adapter(&self, id: usize) -> Result<AdapterInfo, Error> {
        let info = self.bank().unload(id)?;
        self.tidy_adapters();
        Ok(info)
    }

    /// Starts a thread that removes adapters without a name when their last request has ended. The thread does not keep the model
    /// loaded.
    fn tidy_adapters(&self) {
        let mut state = self.bank().state();
        if state.tidying || state.is_tidy() {
            return;
        }
        let (Some(rows), weak) = (self.bank().rows().cloned(), self.downgrade()) else { return };
        let thread = std::thread::Builder::new().name("brasa-adapters".into());
        // Without a thread they leave with the next change.
        state.tidying = thread.spawn(move || tidy(&rows, &weak)).is_ok();
    }
}

fn tidy(rows: &AdapterRows, model: &WeakModel) {
    loop {
        rows.wait_for_an_end(TIDY_PAUSE);
        let Some(model) = model.upgrade() else { return };
        if model.bank().tidy(model.engine()) {
            return;
        }
    }
}
