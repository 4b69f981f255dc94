//! Programs that break a rule are refused, and small ones do what they say.

use super::interp::{HostRun, KernelCall, Memory};
use super::ir::{FunctionKind, Program, Version};
use super::parse::parse;
use super::verify::verify;

/// A program of one input, one output and two slots, with these bodies of `run` and of a step function.
fn program(run: &str, steps: &str) -> Program {
    let text = format!(
        "host \"test\" {{
  inputs 1 outputs 1 weights 64
  size 0 \"n\"
  size 1 \"8*n\"
  outputs
  slot0
  slot1 output 0
  frame0 inputs 1 outputs 1 pointers 9
  frame1 inputs 1 outputs 1 pointers 9
  frame2 inputs 1 outputs 1 pointers 9
  buffers 2
  arena at 64
  k0 \"kernel\" level 0: 0..1
  function \"main.steps0\" steps frame0(v0) {{ {steps} }}
  function \"model\" model() {{ v0 = address descriptor return v0 }}
  function \"run\" run(v0, v1, v2, v3, v4, v5, v6) {{ {run} }}
}}"
    );
    let program = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(parse(&program.to_string()).unwrap(), program);
    program
}

/// What a run does whose only work is a step function.
const CALL: &str = "store outputs, v2 clear slot0 clear slot1 v20 = address frame0
    attempt { call \"main.steps0\"(v20) } failed v21 {
      empty slot0
      if holds slot1 { release slot1 store output 0 data, 0 }
      return v21
    }
    return 0";

fn steps(text: &str) -> Result<(), String> {
    verify(&program(CALL, text))
}

fn run(text: &str) -> Result<(), String> {
    verify(&program(text, "return 0"))
}

fn refused(result: Result<(), String>, reason: &str) {
    let text = result.expect_err(reason);
    assert!(text.contains(reason), "{text:?}, not {reason:?}");
}

/// As every program here, it is parsed again from its text.
#[test]
fn steps_are_told_when_they_are_done() {
    assert!(program(CALL, "step_done 3 return 0").to_string().contains("step_done 3"));
}

#[test]
fn steps_and_events_are_for_traces() {
    let traced = "step 3, alone, \"g0\", \"a \\\"b\\\" (Conv)\" step 4, with_bodies, \"scan\", \"\" event leave, 4 step 5 return 0";
    let own = program(CALL, traced);
    assert!(!own.is_traced());
    verify(&own).unwrap();
    let run = CALL
        .replacen("attempt {", "event run_begin, 0 attempt {", 1)
        .replace("return v21", "v22 = extend v21 event run_end, v22 return v21");
    let own = program(&run, traced);
    assert!(own.is_traced());
    verify(&own).unwrap();
    refused(steps("event run_begin, 0 return 0"), "not in a function of kind Steps");
    refused(super::tests::run("event leave, 3 return 0"), "not in a function of kind Run");
    refused(super::tests::run("step 3 return 0"), "not in a function of kind Run");
    refused(steps("event leave, v0 return 0"), "v0 is of type Ptr, must be I64");
}

#[test]
fn good_programs_are_accepted() {
    steps("return 0").unwrap();
    steps("v1 = load size 1 allocate slot0, v1, \"x\" v2 = load slot0 v3 = kernel k0(v2) release slot0 return 0")
        .unwrap();
    steps("loop (v1 = 0) { v2 = lt v1, 3 } while v2 { v3 = add v1, 1 } next (v3) v4 = lt v1, 5 return 0")
        .unwrap();
    steps("loop (v1 = v0, v2 = 0) { v3 = lt v2, 3 } while v3 { v4 = offset v1, 8 v5 = add v2, 1 } next (v4, v5) return 0")
        .unwrap();
}

#[test]
fn values_are_defined_once_before_their_uses() {
    refused(steps("v1 = add v2, 1 v2 = load size 0 return 0"), "v2 is used before it is defined");
    refused(steps("v1 = element v0, v2, 8 v2 = load size 0 return 0"), "v2 is used before it is defined");
    refused(steps("v1 = element v0, 0, v2 v2 = load size 0 return 0"), "v2 is used before it is defined");
    refused(
        steps("v1 = load size 0 if v1 { v2 = load size 1 } v3 = add v2, 1 return 0"),
        "v2 is not visible here",
    );
    refused(
        steps(
            "loop (v1 = 0) { v2 = lt v1, 3 } while v2 { v3 = add v1, 1 } next (v3) v4 = add v3, 1 return 0",
        ),
        "v3 is not visible here",
    );
    let mut twice = program(CALL, "v1 = load size 0 v2 = load size 1 return 0");
    let body = &mut twice.functions.values_mut().next().unwrap().body;
    body[1].results = body[0].results.clone();
    refused(verify(&twice), "v1 is defined twice");
}

#[test]
fn kernels_have_a_version_for_every_processor() {
    let with_levels = |levels: &[usize]| {
        let mut program = program(CALL, "return 0");
        let versions = &mut program.kernels.values_mut().next().unwrap().versions;
        let version = versions[0].clone();
        *versions = levels.iter().map(|&level| Version { level, ..version.clone() }).collect();
        verify(&program)
    };
    with_levels(&[0, 1]).unwrap();
    refused(with_levels(&[]), "has no version of level 0");
    refused(with_levels(&[1, 2]), "has no version of level 0");
    refused(with_levels(&[0, 2, 1]), "the levels of k0 are not in order");
}

#[test]
fn operands_have_the_types_that_operations_ask_for() {
    refused(steps("v1 = load size 0 v2 = offset v1, 8 return 0"), "v1 is of type I64, must be Ptr");
    refused(steps("v1 = address workspace store size 0, v1 return 0"), "v1 is of type Ptr, must be I64");
    refused(
        steps("v1 = load i8 [v0] v2 = load size 0 v3 = or v1, v2 return 0"),
        "operands of types I8 and I64",
    );
    refused(steps("v1 = load size 0 v2 = extend v1 return 0"), "v1 is of type I64");
    refused(steps("store frame output 0, 5 return 0"), "a number as an address");
    refused(
        steps("v1 = load size 0 fail_if v1, BAD_SIZE, \"\\u{1} \\u{1}\", v1 return 0"),
        "a template for 2 numbers",
    );
}

#[test]
fn what_is_named_exists() {
    refused(steps("v1 = load size 7 return 0"), "there is no size 7");
    refused(steps("v1 = load output 3 data return 0"), "there is no output 3");
    refused(steps("v1 = load slot5 return 0"), "there is no slot5");
    refused(steps("v1 = load frame input 4 return 0"), "frame0 has no such field");
    refused(steps("v1 = address weights 65 return 0"), "weights end at 64");
    refused(steps("v1 = kernel k3() return 0"), "there is no k3");
    refused(steps("v1 = kernel k0(v0, v0, v0) return 0"), "more than 2 buffers");
    assert!(
        parse(
            "host \"x\" { inputs 0 outputs 0 weights 0 buffers 0 arena at 0 function \"run\" run() { jump } }"
        )
        .is_err()
    );
}

#[test]
fn functions_end_and_do_what_their_kind_may() {
    refused(steps("poll"), "ends without `return`");
    refused(steps("return 0 poll"), "something follows a `return`");
    refused(steps("clear slot0 return 0"), "not in a function of kind Steps");
    refused(run("v7 = kernel k0() return 0"), "not in a function of kind Run");
    refused(steps("call \"main.steps0\"(v0) return 0"), "calls itself");
    refused(steps("call \"model\"() return 0"), "a function of kind Model is called");
}

#[test]
fn one_frame_of_a_body_is_in_use_at_a_time() {
    steps("inherit frame1 store frame1 input 0, v0 inherit frame2 store frame2 input 0, v0 return 0")
        .unwrap();
    refused(
        steps("inherit frame1 inherit frame2 store frame1 input 0, v0 return 0"),
        "frame1 is not the frame in use",
    );
    refused(steps("store frame1 input 0, v0 return 0"), "frame1 is not the frame in use");
}

#[test]
fn a_block_is_given_back_once_on_every_path() {
    let whole = "allocate slot0, 64, \"x\"";
    refused(steps(&format!("{whole} return 0")), "slot0 may hold a block when a run ends");
    refused(steps(&format!("{whole} release slot0 release slot0 return 0")), "slot0 is empty");
    refused(steps(&format!("{whole} {whole} return 0")), "slot0 holds a block, which would be lost");
    refused(
        steps(&format!("v1 = load size 0 if v1 {{ {whole} }} release slot0 return 0")),
        "slot0 may be empty",
    );
    refused(steps(&format!("v1 = load size 0 if v1 {{ {whole} }} return 0")), "slot0 may hold a block");
    refused(steps("release slot1 return 0"), "slot1 is empty");
    refused(
        steps(&format!("{whole} transfer slot0, slot1 transfer slot0, slot1 return 0")),
        "slot0 is empty",
    );
    refused(steps("v1 = load slot0 return 0"), "slot0 is empty");
    // Both ways from a condition are followed, and what it says of a slot is known there.
    let perhaps = format!("v1 = load size 0 if v1 {{ {whole} }}");
    refused(
        steps(&format!("v1 = load size 0 if v1 {{ }} else {{ {whole} }} return 0")),
        "slot0 may hold a block",
    );
    refused(steps(&format!("{whole} if holds slot0 {{ }} return 0")), "slot0 may hold a block");
    refused(steps("if holds slot0 { } else { release slot0 } return 0"), "slot0 is empty");
    refused(
        steps(&format!("{perhaps} if holds slot0 {{ release slot0 release slot0 }} return 0")),
        "slot0 is empty",
    );
    refused(
        steps(&format!("{perhaps} if holds slot0 {{ release slot0 }} else {{ release slot0 }} return 0")),
        "slot0 is empty",
    );
    steps(&format!("{perhaps} if holds slot0 {{ release slot0 }} return 0")).unwrap();
    steps(&format!("{perhaps} if holds slot0 {{ release slot0 }} else {{ {whole} release slot0 }} return 0"))
        .unwrap();
    // Handed over to the caller.
    steps(&format!("{whole} transfer slot0, slot1 return 0")).unwrap();
    // A loop that keeps the block of its last iteration.
    refused(
        steps(&format!(
            "loop (v1 = 0) {{ v2 = lt v1, 3 }} while v2 {{ {whole} v3 = add v1, 1 }} next (v3) empty slot0 return 0"
        )),
        "slot0 may hold a block, which would be lost",
    );
}

#[test]
fn a_table_of_strings_is_opened_once_and_closed_once() {
    let run = |text: &str| {
        let mut program = program(&format!("v20 = address strings {text} return 0"), "return 0");
        program.strings = Some(0);
        verify(&program)
    };
    let (open, close) = ("extern onnxc_strings_open(v20, v20, v20)", "extern onnxc_strings_close(v20)");
    run(&format!("{open} {close}")).unwrap();
    refused(run(close), "the table of strings is Unset here, not Full");
    refused(run(&format!("{open} {close} {close}")), "the table of strings is Empty here, not Full");
    refused(run(&format!("{open} {open} {close}")), "the table of strings is Full here, not Unset");
    refused(run(open), "the table of strings may be open when a run ends");
}

#[test]
fn a_run_that_fails_keeps_no_block() {
    let leaky = "store outputs, v2 clear slot0 clear slot1 v20 = address frame0
        call \"main.steps0\"(v20) return 0";
    let fails = "allocate slot0, 64, \"x\" poll release slot0 return 0";
    refused(verify(&program(leaky, fails)), "slot0 may hold a block when a run fails");
    verify(&program(CALL, fails)).unwrap();
    refused(run("v7 = address frame0 call \"main.steps0\"(v7) empty slot0 return 0"), "before it is cleared");
}

#[test]
fn a_size_is_checked_before_it_is_used() {
    let product = "v1 = load size 0 v2, v3 = mul_checked v1, 24";
    refused(
        steps(&format!("{product} store size 1, v2 return 0")),
        "nothing has excluded that it overflows (v3)",
    );
    steps(&format!("{product} fail_if v3, SIZE_OVERFLOW, \"x\" store size 1, v2 return 0")).unwrap();
    // By way of an `or`, and through sums.
    let sum = format!("{product} v4, v5 = add_checked v2, 1 v6 = or v3, v5");
    steps(&format!("{sum} fail_if v6, SIZE_OVERFLOW, \"x\" store size 1, v4 return 0")).unwrap();
    refused(steps(&format!("{sum} fail_if v5, SIZE_OVERFLOW, \"x\" store size 1, v4 return 0")), "(v3)");
    // What an arm excludes does not hold behind it.
    refused(
        steps(&format!("{product} if v1 {{ fail_if v3, SIZE_OVERFLOW, \"x\" }} store size 1, v2 return 0")),
        "nothing has excluded",
    );
    refused(
        steps("v1 = load size 0 v2 = add v1, 8 v3 = offset v0, v2 return 0"),
        "its arithmetic is not checked",
    );
    refused(
        steps(
            "loop (v1 = 0) { v2 = lt v1, 3 } while v2 { v4 = offset v0, v1 v3 = add v1, 1 } next (v3) return 0",
        ),
        "v1 is a counter, not a size",
    );
    refused(
        steps("v1 = load size 0 v2, v3 = mul_checked v1, 2 v4 = extern memcpy(v0, v0, v2) return 0"),
        "nothing has excluded",
    );
    steps(
        "loop (v1 = 0) { v2 = lt v1, 3 } while v2 { v3, v4 = add_checked v1, 8 fail_if v4, BAD_SIZE, \"x\" v5 = offset v0, v1 } next (v3) return 0",
    )
    .unwrap();
}

#[test]
fn run_checks_before_it_writes() {
    let late = "v7 = eq v5, 0 store size 0, 1 fail_if v7, BAD_WORKSPACE, \"x\" return 0";
    refused(run(late), "a check after the first write");
    refused(
        run("v7 = eq v5, 0 if v7 { store output 0 data, 0 } poll return 0"),
        "a check after the first write",
    );
    run("v7 = eq v5, 0 fail_if v7, BAD_WORKSPACE, \"x\" store size 0, 1 return 0").unwrap();
    let text = program("return 0", "return 0").to_string();
    let text = text.replace(
        "function \"main.steps0\" steps frame0(v0) {",
        "function \"checks0\" checks(v0, v1, v2, v3, v4, v5, v6) { store size 0, 1",
    );
    refused(verify(&parse(&text).unwrap()), "a write among checks");
}

/// What a run gives for a workspace function.
fn workspace(body: &str, dims: &[i64]) -> i64 {
    let text = format!(
        "host \"test\" {{ inputs 0 outputs 0 weights 0 buffers 0 arena at 0
         function \"workspace\" workspace(v0, v1) {{ {body} }} }}"
    );
    let program = parse(&text).unwrap();
    verify(&program).unwrap();
    let mut kernels = |_: &mut Memory, _: &KernelCall<'_>| Ok(0);
    let mut machine = HostRun::new(&program, Memory::default(), vec![], &mut kernels);
    let array = machine.memory.with(dims.iter().flat_map(|dim| dim.to_le_bytes()).collect());
    machine.call(FunctionKind::Workspace, &[array as i64, dims.len() as i64]).unwrap()
}

#[test]
fn arithmetic_of_sizes() {
    let of = |name: &str, a: i64, b: i64| {
        let body = format!(
            "v2 = load i64 [v0] v3 = load i64 [v0 + 8] v4, v5 = {name} v2, v3 if v5 {{ return -1000 }} return v4"
        );
        workspace(&body, &[a, b])
    };
    assert_eq!(of("add_checked", 5, -7), -2);
    assert_eq!(of("add_checked", i64::MAX, 1), -1000);
    assert_eq!(of("mul_checked", -3, 7), -21);
    assert_eq!(of("mul_checked", 1 << 32, 1 << 31), -1000);
    assert_eq!((of("div_checked", -7, 2), of("mod_checked", -7, 2)), (-4, 1));
    assert_eq!((of("div_checked", 7, 0), of("mod_checked", 7, -1)), (-1000, -1000));
    for (name, wanted) in [
        ("eq", [false, true, false, false]),
        ("ne", [true, false, true, true]),
        ("lt", [true, false, false, true]),
        ("le", [true, true, false, true]),
        ("gt", [false, false, true, false]),
        ("ge", [false, true, true, false]),
        ("lt_unsigned", [true, false, false, false]),
    ] {
        let body = format!(
            "v2 = load i64 [v0] v3 = load i64 [v0 + 8] v4 = {name} v2, v3 if v4 {{ return 1 }} return 0"
        );
        let found = [(1, 2), (2, 2), (3, 2), (-1, 2)].map(|(a, b)| workspace(&body, &[a, b]) == 1);
        assert_eq!(found, wanted, "{name}");
    }
    let looped = "loop (v2 = 0, v3 = 1) { v4 = lt v2, v1 } while v4 { v5 = add v2, 1 v6, v7 = add_checked v3, v3 if v7 { return -1 } } next (v5, v6) return v3";
    assert_eq!(workspace(looped, &[0; 10]), 1024);
}

/// A body reads and writes nothing but blocks of memory.
#[test]
fn accesses_outside_of_memory_are_faults() {
    let text = "host \"test\" { inputs 0 outputs 0 weights 0 buffers 0 arena at 0
         function \"workspace\" workspace(v0, v1) { v2 = load i64 [v0 + 8] return v2 } }";
    let program = parse(text).unwrap();
    let mut kernels = |_: &mut Memory, _: &KernelCall<'_>| Ok(0);
    let mut machine = HostRun::new(&program, Memory::default(), vec![], &mut kernels);
    let array = machine.memory.with(vec![0; 12]);
    let error = machine.call(FunctionKind::Workspace, &[array as i64, 1]).unwrap_err();
    assert!(error.message.contains("are in no block"), "{error}");
}
