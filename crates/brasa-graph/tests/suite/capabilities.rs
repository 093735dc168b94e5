//! Limits of devices that are known before anything is uploaded.

use crate::small_model::small_model;
use brasa_graph::device::{Capabilities, KvType};
use brasa_graph::op::{Gating, RouterTopK};
use brasa_graph::testing::Case;
use brasa_graph::testing::f32_weight;

#[test]
fn what_a_device_lacks_is_told_by_name() {
    let all = Capabilities::default();
    let graph = small_model();
    for &dtype in KvType::ALL {
        assert_eq!(all.check("all", &graph, dtype), Ok(()));
    }
    let refused =
        |limits: Capabilities, graph, dtype| limits.check("few", graph, dtype).map_err(|e| e.to_string());
    let halves = Capabilities { kv_types: &[KvType::F16], ..all };
    assert_eq!(refused(halves, &graph, KvType::F16), Ok(()));
    assert_eq!(
        refused(halves, &graph, KvType::Q8),
        Err("few does not support keys and values of type Q8".into())
    );
    let narrow = |widest_head| Capabilities { widest_head, ..all };
    assert_eq!(refused(narrow(Some(8)), &graph, KvType::F16), Ok(()));
    assert_eq!(
        refused(narrow(Some(7)), &graph, KvType::F16),
        Err("few does not support heads of 8, at most 7".into())
    );
    let routed = Case::new("router", 1, &f32_weight, |b| {
        let logits = b.rows(&[9]);
        vec![b.graph.router_topk(logits, RouterTopK { k: 2, gating: Gating::SOFTMAX_ALL }).1]
    });
    // A graph without caches keeps no keys.
    let few = Capabilities { kv_types: &[], most_experts: Some(8), ..all };
    assert_eq!(
        refused(few, &routed.graph, KvType::F32),
        Err("few does not support 9 experts, at most 8".into())
    );
    assert_eq!(refused(Capabilities { most_experts: Some(9), ..few }, &routed.graph, KvType::F32), Ok(()));
}
