use brasa_train::Random;

/// The first numbers that the authors' program prints from the state 1, 2, 3, 4, as rand_xoshiro's tests have them.
#[test]
fn numbers_are_those_of_xoshiro256_plus_plus() {
    let mut random = Random::from_state([1, 2, 3, 4]);
    let expected =
        [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386, 9_228_616_714_210_784_205];
    assert_eq!([(); 5].map(|()| random.bits()), expected);
}

#[test]
fn numbers_lie_in_their_range_and_streams_differ() {
    let mut random = Random::new(7, 0);
    let mut counts = [0; 5];
    let mut sum = 0.0;
    for _ in 0..10_000 {
        counts[random.below(5) as usize] += 1;
        let uniform = random.uniform();
        assert!((0.0..1.0).contains(&uniform));
        sum += uniform;
    }
    assert!(counts.iter().all(|count| (1800..2200).contains(count)), "{counts:?}");
    assert!((sum / 1e4 - 0.5).abs() < 0.02, "{sum}");
    assert_eq!(random.below(0), 0);
    assert_eq!(Random::new(7, 1).bits(), Random::new(7, 1).bits());
    assert_ne!(Random::new(7, 1).bits(), Random::new(7, 2).bits());
    assert_ne!(Random::new(7, 1).bits(), Random::new(8, 1).bits());
}
