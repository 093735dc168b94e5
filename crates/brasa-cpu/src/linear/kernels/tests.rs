//! Sums at the edge of what instructions of 8 and 16 bits hold.

use super::*;
use crate::linear::blocks::{PanelBlock, PanelLanes};
use crate::linear::formats::{Codes, Format, Scales, Shape};
use crate::linear::layout::LANES;
use crate::quantize::BlockMeta;

const BLOCKS: usize = 3;

/// A layout that no stored format need have: every width of codes with every shape.
fn layout(codes: Codes, shape: Shape) -> Layout {
    Layout { format: Format::Q4_0, codes, scales: Scales::F16, shape, blocks: BLOCKS }
}

/// A panel of one code, with scales and minima that keep every result an exact integer.
fn panel(layout: &Layout, code: u8, centred: bool) -> Panel {
    let mut panel = Panel::default();
    panel.reserve(layout, &(0..BLOCKS), centred);
    let code = if centred { code.wrapping_sub(layout.codes.offset()) } else { code };
    panel.codes.fill(PanelBlock([code; 512]));
    panel.scales.fill(PanelLanes([1.0; LANES]));
    panel.mins.fill(PanelLanes([-1.0; LANES]));
    panel
}

fn meta(codes: &[i8]) -> BlockMeta {
    let sum = |codes: &[i8]| codes.iter().map(|code| i32::from(*code)).sum::<i32>();
    let (first, second) = (sum(&codes[..16]), sum(&codes[16..]));
    let sum = first + second;
    BlockMeta { scale: 1.0, scaled_sum: sum as f32, sum, half_sums: [first as i16, second as i16] }
}

/// Every width with every shape, extreme codes times extreme activations of either and of mixed signs: a sum that left its 16 bits
/// would be off by 2¹⁶ times a scale.
#[test]
fn extreme_codes_and_activations_do_not_overflow() {
    let widths =
        [Codes::Bits2, Codes::Bits3, Codes::Bits4, Codes::Bits5, Codes::Bits6, Codes::Bits8, Codes::IQ4];
    let shapes = [Shape::Whole, Shape::WholeMin, Shape::Halves, Shape::HalvesMin];
    let patterns: [fn(usize) -> i8; 5] = [
        |_| 127,
        |_| -127,
        |k| if k % 2 == 0 { 127 } else { -127 },
        |k| if k < 16 { 127 } else { -127 },
        |k| if k % 4 < 2 { -127 } else { 127 },
    ];
    for isa in Isa::available() {
        for (codes, shape) in widths.into_iter().flat_map(|codes| shapes.map(|shape| (codes, shape))) {
            let layout = layout(codes, shape);
            let largest = codes.width().largest_code().min(if matches!(codes, Codes::Table4(_)) {
                241
            } else {
                (1 << codes.bits()) - 1
            });
            let smallest = i32::from(matches!(codes, Codes::Table4(_)));
            for code in [largest, smallest] {
                let panel = panel(&layout, code as u8, centres_panels(isa, &layout));
                for rows in [1, 2, 4, 8] {
                    let x: Vec<(Vec<i8>, Vec<BlockMeta>)> = (0..rows)
                        .map(|row| {
                            let codes: Vec<i8> =
                                (0..BLOCKS * BLOCK).map(|k| patterns[row % 5](k % BLOCK)).collect();
                            let blocks = codes.chunks(BLOCK).map(meta).collect();
                            (codes, blocks)
                        })
                        .collect();
                    let rows: Vec<_> =
                        x.iter().map(|(codes, blocks)| QuantizedRow { codes, blocks }).collect();
                    let mut out = vec![[f32::NAN; LANES]; rows.len()];
                    multiply_panel(isa, &layout, &panel, &rows, &mut out);
                    for (row, out) in rows.iter().zip(&out) {
                        let sum: i32 = row.blocks.iter().map(|block| block.sum).sum();
                        let weight =
                            if shape.has_min() { code - 1 } else { code - i32::from(codes.offset()) };
                        assert_eq!(
                            out.map(|y| y as i32),
                            [weight * sum; LANES],
                            "{codes:?} {shape:?}, codes {code} on {}, activations {:?}",
                            isa.name(),
                            &row.codes[..BLOCK]
                        );
                    }
                }
            }
        }
    }
}
