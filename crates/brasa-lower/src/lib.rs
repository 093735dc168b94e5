//! Lowering of a graph to a table of operations over one arena: the part that all devices share.
//!
//! A device walks the items of a [`Schedule`](brasa_graph::Schedule) and appends one operation or several for each. Everything that
//! does not depend on the device is here: the place of each value ([`Place`]), the operations that need each buffer and hence its
//! lifetime ([`Lowering`]), the readers of each value ([`Readers`]), and the [layout](arena) of the arena. The device
//! supplies the rest: which operations compute an item, and how.
//!
//! ```
//! use brasa_graph::device::ProgramLimits;
//! use brasa_graph::op::Unary;
//! use brasa_graph::{Builder, DType, Dim};
//! use brasa_lower::Lowering;
//!
//! let mut b = Builder::new();
//! let x = b.given("x", DType::F32, Dim::ROWS, &[4]);
//! let y = b.unary(x, Unary::Silu);
//! let graph = b.finish(&[y]).unwrap();
//! // A device whose operations are strings.
//! let mut lowering = Lowering::<String>::new("example", &graph, &ProgramLimits::default());
//! let (from, to) = (lowering.place(x).unwrap(), lowering.make(y));
//! lowering.push(format!("{:?} = silu({:?})", to.base, from.base), "silu");
//! let table = lowering.finish(vec![to], 64);
//! assert_eq!(table.arena_bytes, 512 * 4 * 4);
//! ```
//!
//! This crate knows neither kernels nor memory of a device.

pub mod arena;
mod lowering;
mod place;
mod readers;

pub use lowering::{Dense, Entry, Lowering, Table};
pub use place::{Base, BufferId, Place};
pub use readers::Readers;
