//! Operations with recurrent states against transformers (`tools/golden/recurrences.py`): results of all rows, and the state page behind
//! the last row.

use std::sync::Arc;

use brasa_graph::device::{KvType, Precision};
use brasa_graph::op::{Binary, HeadSharing, ScanRule, StateScan, Unary};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::testing::{Running, Tolerance, compare, weight};
use brasa_graph::{Builder, Input, ValueId};
use serde_json::Value;

const BOUND: Tolerance = Tolerance(1e-5);

/// A case on its way to a graph.
struct Case<'a> {
    golden: &'a Value,
    b: Builder,
    ids: ValueId,
}

impl<'a> Case<'a> {
    fn new(golden: &'a Value) -> Self {
        let mut b = Builder::new();
        let ids = b.input(Input::TokenIds);
        Self { golden, b, ids }
    }

    fn constant(&mut self, name: &str) -> ValueId {
        let (shape, values) = array(&self.golden["operands"][name]);
        self.b.weight(Ok(weight(name, &shape, &values)))
    }

    /// An operand by rows: row *i* is looked up for token *i*.
    fn rows(&mut self, name: &str) -> ValueId {
        let (shape, values) = array(&self.golden["operands"][name]);
        let table = self.b.weight(Ok(weight(name, &[shape[0], values.len() / shape[0]], &values)));
        let rows = self.b.embed(self.ids, table);
        if shape.len() > 2 { self.b.reshape(rows, &shape[1..]) } else { rows }
    }

    fn scan(&mut self, inputs: &[ValueId], rule: ScanRule) -> ValueId {
        let (shape, _) = array(&self.golden["state"]);
        let state = Some(self.b.state(shape.iter().product()));
        self.b.state_scan(inputs, StateScan { state, rule, sharing: HeadSharing::Grouped })
    }

    /// Asserts that the result and the state are as the case says, for a text in one step and in several.
    fn check(self, y: ValueId) {
        let graph = Arc::new(self.b.finish(&[y]).unwrap());
        let (name, (shape, expected)) = (&self.golden["name"], array(&self.golden["y"]));
        let ids: Vec<u32> = (0..shape[0] as u32).collect();
        for rows in [ids.len(), 1, 4] {
            let mut running = Running::new(&ReferenceBackend, &graph, Precision::Reference, KvType::F32);
            let found = running.chunked(1, &ids, &[rows]);
            let comparison = compare(&found, &expected);
            assert!(comparison.within(BOUND), "{name}, {rows} rows a step: {comparison}");
            if graph.state_layout().is_empty() {
                continue;
            }
            let mut bytes = vec![0; graph.state_layout().page_bytes()];
            // Steps take pages in order, so the last is that of the last step.
            let last = brasa_graph::step::PageId::from_index(ids.len().div_ceil(rows) - 1);
            running.pool.read_state_page(last, &mut bytes).unwrap();
            let (_, expected) = array(&self.golden["state"]);
            let found: Vec<f32> =
                bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
            let comparison = compare(&found[..expected.len()], &expected);
            assert!(comparison.within(BOUND), "the state of {name}, {rows} rows a step: {comparison}");
        }
    }
}

fn array(value: &Value) -> (Vec<usize>, Vec<f32>) {
    let shape = serde_json::from_value(value["shape"].clone()).unwrap();
    (shape, serde_json::from_value(value["f32"].clone()).unwrap())
}

#[test]
fn recurrences_agree_with_transformers() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../golden/recurrences.json")).unwrap();
    let mut names = Vec::new();
    for case in &cases {
        let mut c = Case::new(case);
        let y = match case["name"].as_str().unwrap() {
            "short_conv" => {
                let (x, w) = (c.rows("x"), c.constant("w"));
                let state = c.b.state(array(&case["state"]).1.len());
                let y = c.b.short_conv(x, w, state);
                c.b.unary(y, Unary::Silu)
            }
            "delta" => {
                let inputs = ["q", "k", "v", "decay", "beta"].map(|name| c.rows(name));
                c.scan(&inputs, ScanRule::Delta)
            }
            "mamba2" => {
                let [q, k, x, dt] = ["c", "b", "x", "dt"].map(|name| c.rows(name));
                let a = c.constant("a");
                let heads = array(&case["operands"]["a"]).1.len();
                let dt = c.b.unary(dt, Unary::Softplus);
                let decay = c.b.apply(Binary::Mul, &[dt, a])[0];
                let decay = c.b.unary(decay, Unary::Exp);
                let each = c.b.reshape(dt, &[heads, 1]);
                let v = c.b.apply(Binary::Mul, &[x, each])[0];
                c.scan(&[q, k, v, decay], ScanRule::Add)
            }
            "softplus" => {
                let (shape, values) = array(&case["operands"]["x"]);
                let table = c.b.weight(Ok(weight("x", &[shape[0], 1], &values)));
                let x = c.b.embed(c.ids, table);
                c.b.unary(x, Unary::Softplus)
            }
            name => panic!("no case {name}"),
        };
        c.check(y);
        names.push(case["name"].as_str().unwrap());
    }
    assert_eq!(names, ["short_conv", "short_conv", "delta", "mamba2", "softplus"]);
}
