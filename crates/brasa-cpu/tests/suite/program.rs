//! Programs that break, are profiled, or have nothing to do.

use brasa_cpu::testing::BreakableProgram;
use brasa_cpu::{CpuBackend, CpuOptions};
use brasa_graph::device::{Backend, DeviceError, KvPool, KvPoolSpec, LostPart, Program, ProgramLimits};
use brasa_graph::step::{Outs, Step};
use brasa_graph::testing::{Random, Sequences, f32_weight};
use brasa_graph::{Builder, Input};

/// `linear(embed(ids))`, three columns.
fn program(threads: usize) -> BreakableProgram {
    let (mut b, mut random) = (Builder::new(), Random::new(1));
    let ids = b.input(Input::TokenIds);
    let [table, w] = [[10, 8], [3, 8]].map(|shape| b.weight(Ok(f32_weight(&mut random, "w", &shape))));
    let x = b.embed(ids, table);
    let y = b.linear(x, w);
    let graph = b.finish(&[y]).unwrap();
    let limits = ProgramLimits { max_rows: 4, max_outs: 4, max_segments: 2 };
    BreakableProgram::new(&graph, limits, threads)
}

fn step(rows: usize) -> (Step, Box<dyn KvPool>) {
    let device = CpuBackend::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let mut pool = device.kv_pool(KvPoolSpec::empty()).unwrap();
    let tokens = vec![1; rows];
    let segment = Sequences::new(&*pool).extend(&mut *pool, 1, &tokens, Outs::All).unwrap();
    (Step { segments: vec![segment] }, pool)
}

#[test]
fn a_panicking_thread_ends_the_program_not_the_process() {
    for threads in [1, 2] {
        let mut breakable = program(threads);
        let (step, mut pool) = step(3);
        assert_eq!(breakable.program().run(&step, &mut *pool).unwrap().only().floats().len(), 9);
        // A table that points outside the arena: a bug of this crate.
        breakable.break_products();
        let program = breakable.program();
        let lost = |error: DeviceError| matches!(error, DeviceError::Lost { part: LostPart::Program, .. });
        assert!(lost(program.run(&step, &mut *pool).unwrap_err()));
        it_is_still_lost(program, &step, &mut *pool);
    }
}

fn it_is_still_lost(program: &mut dyn Program, step: &Step, pool: &mut dyn KvPool) {
    let error = program.run(step, pool).unwrap_err();
    assert!(error.to_string().starts_with("device cpu failed: thread "), "{error}");
    let error = program.profile(step, pool).unwrap_err();
    assert!(matches!(error, DeviceError::Lost { part: LostPart::Program, .. }));
}

#[test]
fn a_profile_names_every_operation() {
    let mut program = program(2);
    let (step, mut pool) = step(3);
    let times = program.program().profile(&step, &mut *pool).unwrap();
    let labels: Vec<&str> = times.iter().map(|time| time.label.as_str()).collect();
    assert_eq!(labels, ["embed", "linear w"]);
    assert_eq!(times[1].flops, 3 * 3 * 8 * 2);
    assert_eq!(times[1].bytes, 3 * 8 * 4, "stored bytes, though a strip has sixteen rows");
}

#[test]
fn a_description_names_every_operand_and_its_place() {
    let expected = "\
program: 192 bytes for steps of at most 4 rows
  TokenIds @ 128, 4 × 1
  embed
    ids          @ 128, 4 × 1
    table        w
    out        ← @ 0, 4 × 8
  linear w   f32
    x            @ 0, 4 × 8
    w            w
    out        ← @ 128, 4 × 3
  returns @ 128, 4 × 3
";
    assert_eq!(program(2).program().describe(), expected);
}

#[test]
fn an_empty_step_has_no_results() {
    let mut program = program(1);
    let (_, mut pool) = step(1);
    let output = program.program().run(&Step::default(), &mut *pool).unwrap().only();
    assert_eq!((output.rows(), output.width()), (0, 3));
}

#[test]
fn the_output_is_where_the_table_says() {
    assert_eq!(program(1).output(4), [3, 3, 4]);
}
