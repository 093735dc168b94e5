//! The twelve bytes in which Q4_K and Q5_K keep eight 6-bit scales and eight 6-bit minima.
//!
//! Bytes 0–3 hold scales 0–3 and bytes 4–7 minima 0–3 in their lower six bits; bytes 8–11 hold the lower
//! nibbles of scale and minimum 4–7, whose upper two bits sit on top of bytes 0–3 and 4–7.

/// Unpacks `(scales, minima)`.
pub fn unpack_k4_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for j in 0..4 {
        let (a, b, c) = (packed[j], packed[j + 4], packed[j + 8]);
        scales[j] = a & 63;
        mins[j] = b & 63;
        scales[j + 4] = c & 15 | a >> 6 << 4;
        mins[j + 4] = c >> 4 | b >> 6 << 4;
    }
    (scales, mins)
}

/// Packs scales and minima; only their lower six bits count.
pub fn pack_k4_scales(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] & 63 | scales[j + 4] >> 4 << 6;
        packed[j + 4] = mins[j] & 63 | mins[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 15 | mins[j + 4] << 4;
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_is_undone_by_unpacking() {
        let scales = [1, 63, 32, 17, 48, 5, 62, 31];
        let mins = [0, 21, 42, 63, 16, 15, 33, 58];
        assert_eq!(unpack_k4_scales(&pack_k4_scales(&scales, &mins)), (scales, mins));
    }
}
