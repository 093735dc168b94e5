//! Probes: events of a generation, and from inside the model.

use std::fmt;
use std::str::FromStr;

use brasa_graph::sampling::{Distribution, Logprobs};
use serde_json::{Value, json};

use crate::memory::{peak_memory_bytes, resident_memory_bytes};
use crate::{Error, Fragment, GenerateOptions, LayerInside, Model, RequestOptions};

/// A kind of event that [`Probes`] report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ProbeKind {
    /// Each token that is drawn.
    Token,
    /// The log-probability of each token.
    Logprob,
    /// The entropy of the distribution that the model gives for each token.
    Entropy,
    /// The most probable tokens in the place of each token.
    Top,
    /// Pages of keys and values in use.
    Cache,
    /// Memory of the process.
    Memory,
    /// The entropy of each head's attention, and the position with the largest weight.
    Heads,
    /// The length of the residual stream behind each layer.
    Residual,
    /// The cosine between the residual streams behind one layer and behind the next: 1 if the stream does not turn.
    Coherence,
    /// The experts that routers choose.
    Router,
}

impl ProbeKind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::Token,
        Self::Logprob,
        Self::Entropy,
        Self::Top,
        Self::Cache,
        Self::Memory,
        Self::Heads,
        Self::Residual,
        Self::Coherence,
        Self::Router,
    ];

    /// The kind's name, e.g. `entropy`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Logprob => "logprob",
            Self::Entropy => "entropy",
            Self::Top => "top",
            Self::Cache => "cache",
            Self::Memory => "memory",
            Self::Heads => "heads",
            Self::Residual => "residual",
            Self::Coherence => "coherence",
            Self::Router => "router",
        }
    }

    /// True for kinds that come from a [look inside](Model::look_inside), when the text is there.
    pub fn is_inside(self) -> bool {
        matches!(self, Self::Heads | Self::Residual | Self::Coherence | Self::Router)
    }
}

impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ProbeKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::Options(format!("no probe is called `{name}`; there are {known}"))
        })
    }
}

/// One event of a generation that a probe reports.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "`token` counts the generated tokens, `position` all tokens of a text, from 0"
)]
pub enum ProbeEvent {
    /// A token was drawn; `text` is the text that it completed.
    Token { token: usize, id: u32, text: String },
    /// The natural logarithm of a token's probability.
    Logprob { token: usize, logprob: f32 },
    /// The entropy in nats of the model's distribution, before penalties and filters.
    Entropy { token: usize, nats: f32 },
    /// The most probable tokens and their log-probabilities.
    Top { token: usize, top: Vec<(u32, f32)> },
    /// Pages and bytes of keys and values that all requests hold, and the most bytes that they may hold.
    Cache { token: usize, pages: usize, bytes: u64, most_bytes: u64 },
    /// Memory of the process now and at its peak; `None` if the system does not tell.
    Memory { token: usize, resident_bytes: Option<u64>, peak_bytes: Option<u64> },
    /// The entropy in nats of a head's attention, and the position with the largest weight.
    Head { layer: usize, head: usize, position: usize, nats: f32, most: usize, weight: f32 },
    /// The length of the residual stream behind a layer.
    Residual { layer: usize, position: usize, norm: f32 },
    /// Cosine between the residual stream behind one layer and behind the next chosen layer.
    Coherence { layer: usize, position: usize, cosine: f32 },
    /// The experts that a router chose, and their shares.
    Router { layer: usize, position: usize, experts: Vec<(u32, f32)> },
}

impl ProbeEvent {
    /// The kind of the event.
    pub fn kind(&self) -> ProbeKind {
        match self {
            Self::Token { .. } => ProbeKind::Token,
            Self::Logprob { .. } => ProbeKind::Logprob,
            Self::Entropy { .. } => ProbeKind::Entropy,
            Self::Top { .. } => ProbeKind::Top,
            Self::Cache { .. } => ProbeKind::Cache,
            Self::Memory { .. } => ProbeKind::Memory,
            Self::Head { .. } => ProbeKind::Heads,
            Self::Residual { .. } => ProbeKind::Residual,
            Self::Coherence { .. } => ProbeKind::Coherence,
            Self::Router { .. } => ProbeKind::Router,
        }
    }

    /// The event as a JSON object; its field `probe` is the kind's name.
    pub fn to_json(&self) -> Value {
        let probe = self.kind().name();
        match self {
            Self::Token { token, id, text } => {
                json!({"probe": probe, "token": token, "id": id, "text": text})
            }
            Self::Logprob { token, logprob } => json!({"probe": probe, "token": token, "logprob": logprob}),
            Self::Entropy { token, nats } => json!({"probe": probe, "token": token, "nats": nats}),
            Self::Top { token, top } => json!({"probe": probe, "token": token, "top": top}),
            Self::Cache { token, pages, bytes, most_bytes } => {
                json!({"probe": probe, "token": token, "pages": pages, "bytes": bytes, "most_bytes": most_bytes})
            }
            Self::Memory { token, resident_bytes: resident, peak_bytes: peak } => {
                json!({"probe": probe, "token": token, "resident_bytes": resident, "peak_bytes": peak})
            }
            Self::Head { layer, head, position, nats, most, weight } => json!({
                "probe": probe, "layer": layer, "head": head, "position": position, "nats": nats, "most": most,
                "weight": weight,
            }),
            Self::Residual { layer, position, norm } => {
                json!({"probe": probe, "layer": layer, "position": position, "norm": norm})
            }
            Self::Coherence { layer, position, cosine } => {
                json!({"probe": probe, "layer": layer, "position": position, "cosine": cosine})
            }
            Self::Router { layer, position, experts } => {
                json!({"probe": probe, "layer": layer, "position": position, "experts": experts})
            }
        }
    }
}

/// The events that a program wants to see.
///
/// Events are made on the thread that reads a stream, of what its fragments bring. The engine does not depend on them: without
/// probes a generation costs nothing extra. A slow sink delays its own stream alone, once it is
/// [`run_ahead`](RequestOptions::run_ahead) fragments behind. [`Logprob`](ProbeKind::Logprob), [`Entropy`](ProbeKind::Entropy)
/// and [`Top`](ProbeKind::Top) need the logits of every token on the host, so a device that draws by itself gives up its chains
/// for such a text.
///
/// ```
/// use brasa::{GenerateOptions, LoadOptions, Model, ProbeKind, Probes};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
/// let model = Model::load(path, &LoadOptions::default())?;
/// let probes = Probes::of([ProbeKind::Token, ProbeKind::Entropy]);
/// let mut options = GenerateOptions { max_tokens: Some(4), ..GenerateOptions::default() };
/// probes.ask(&mut options);
/// let mut watch = probes.watch(&model);
/// for fragment in model.generate("An ember is", &options)? {
///     watch.see(&fragment?, |event| println!("{}", event.to_json()));
/// }
/// # Ok::<(), brasa::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probes {
    /// The kinds of events.
    pub kinds: Vec<ProbeKind>,
    /// Tokens that [`ProbeKind::Top`] lists.
    pub top: usize,
    /// Layers that are looked into; empty for all.
    pub layers: Vec<usize>,
}

impl Probes {
    /// Probes for events of these kinds, with defaults for all else.
    pub fn of(kinds: impl IntoIterator<Item = ProbeKind>) -> Self {
        Self { kinds: kinds.into_iter().collect(), top: 5, layers: Vec::new() }
    }

    /// Sets the options that make a generation report the values that the events need. Options that already report more stay
    /// unchanged.
    pub fn ask(&self, options: &mut GenerateOptions) {
        let sampling = &mut options.sampling;
        sampling.entropy |= self.wants(ProbeKind::Entropy);
        let top = if self.wants(ProbeKind::Top) { self.top } else { 0 };
        if self.wants(ProbeKind::Logprob) || top > 0 {
            let asked = sampling.logprobs.get_or_insert(Logprobs { top, of: Distribution::Raw });
            asked.top = asked.top.max(top);
        }
    }

    /// A watch that makes events of one stream of `model`.
    pub fn watch(&self, model: &Model) -> Watch {
        Watch { probes: self.clone(), model: model.clone(), token: 0 }
    }

    /// Looks inside the model for the text `ids`, and sends to `sink` the events of kinds that [are
    /// inside](ProbeKind::is_inside).
    ///
    /// The text is computed afresh, by [`Model::look_inside`]. Does nothing if no such kind is wanted.
    ///
    /// # Errors
    ///
    /// The errors of [`Model::look_inside`].
    pub fn look(
        &self,
        model: &Model,
        ids: &[u32],
        request: &RequestOptions,
        mut sink: impl FnMut(ProbeEvent),
    ) -> Result<(), Error> {
        if !self.kinds.iter().any(|kind| kind.is_inside()) {
            return Ok(());
        }
        let layers = model.look_inside(ids, &self.layers, request)?;
        for (at, layer) in layers.iter().enumerate() {
            self.tell(layer, layers.get(at + 1), &mut sink);
        }
        Ok(())
    }

    fn tell(&self, inside: &LayerInside, next: Option<&LayerInside>, sink: &mut impl FnMut(ProbeEvent)) {
        let layer = inside.layer;
        if self.wants(ProbeKind::Residual) {
            for (position, norm) in inside.residual_norms().into_iter().enumerate() {
                sink(ProbeEvent::Residual { layer, position, norm });
            }
        }
        if let Some(next) = next.filter(|_| self.wants(ProbeKind::Coherence)) {
            for (position, cosine) in inside.coherence(next).into_iter().enumerate() {
                sink(ProbeEvent::Coherence { layer, position, cosine });
            }
        }
        if self.wants(ProbeKind::Router) {
            for (position, experts) in inside.experts().into_iter().enumerate() {
                sink(ProbeEvent::Router { layer, position, experts });
            }
        }
        if self.wants(ProbeKind::Heads) {
            for head in 0..inside.heads {
                let (weights, entropy) = (inside.weights(head), inside.entropy(head));
                for (position, row) in weights.chunks_exact(inside.tokens()).enumerate() {
                    let larger =
                        |best: usize, other: usize| if row[other] > row[best] { other } else { best };
                    let most = (0..=position).reduce(larger).unwrap_or(position);
                    let (nats, weight) = (entropy[position], row[most]);
                    sink(ProbeEvent::Head { layer, head, position, nats, most, weight });
                }
            }
        }
    }

    fn wants(&self, kind: ProbeKind) -> bool {
        self.kinds.contains(&kind)
    }
}

/// Makes the events of one stream.
#[derive(Debug)]
pub struct Watch {
    probes: Probes,
    model: Model,
    /// Tokens seen so far.
    token: usize,
}

impl Watch {
    /// Sends the events of the stream's next fragment to `sink`. Kinds whose values the stream does not [report](Probes::ask) are
    /// left out.
    pub fn see(&mut self, fragment: &Fragment, mut sink: impl FnMut(ProbeEvent)) {
        let Some(drawn) = &fragment.token else { return };
        let token = self.token;
        self.token += 1;
        for kind in &self.probes.kinds {
            let event = match kind {
                ProbeKind::Token => {
                    Some(ProbeEvent::Token { token, id: drawn.id, text: fragment.text.clone() })
                }
                ProbeKind::Logprob => drawn.logprob.map(|logprob| ProbeEvent::Logprob { token, logprob }),
                ProbeKind::Entropy => drawn.entropy.map(|nats| ProbeEvent::Entropy { token, nats }),
                ProbeKind::Top => {
                    let top: Vec<_> = drawn.top.iter().copied().take(self.probes.top).collect();
                    (!top.is_empty()).then_some(ProbeEvent::Top { token, top })
                }
                ProbeKind::Cache => {
                    let stats = self.model.engine().stats();
                    let (bytes, most_bytes) = (stats.cache_bytes_used, stats.cache_bytes);
                    Some(ProbeEvent::Cache { token, pages: stats.pages_used, bytes, most_bytes })
                }
                ProbeKind::Memory => Some(ProbeEvent::Memory {
                    token,
                    resident_bytes: resident_memory_bytes(),
                    peak_bytes: peak_memory_bytes(),
                }),
                ProbeKind::Heads | ProbeKind::Residual | ProbeKind::Coherence | ProbeKind::Router => None,
            };
            if let Some(event) = event {
                sink(event);
            }
        }
    }
}
