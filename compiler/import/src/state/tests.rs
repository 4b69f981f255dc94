use super::*;
use onnxc_ir::graph::parse::parse;
use onnxc_ir::graph::{Panels, Part, Tensor, TensorType};
use onnxc_ir::interp;

/// The pairs that are found, as text.
fn found(text: &str) -> Vec<String> {
    pairs_of(&parse(text).unwrap()).iter().map(ToString::to_string).collect()
}

#[test]
fn auto_is_no_pair() {
    let choice = |texts: &[&str]| {
        let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
        let choice = Choice::parse(&texts, None).unwrap();
        (choice.found, choice.pairs.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(choice(&["auto"]), (true, vec![]));
    assert_eq!(choice(&["past=present"]), (false, vec!["past=present".to_string()]));
    assert_eq!(choice(&["past=present", "auto"]), (true, vec!["past=present".to_string()]));
}

/// An input alone belongs to pairs if no output has the name that its pair would have, regardless of the type of that output.
#[test]
fn inputs_whose_output_has_another_type_are_not_alone() {
    let text = |output: &str| {
        format!(
            r#"graph "caches" {{
  symbol s0 "past"
  input v0 "past.key" : f32[1, s0]
  input v1 "past.scale" : f32[1, 4]
  input v2 "x" : f32[1, 1]
  v3 = concat v0, v2 {{axis=1}} : f32[1, s0 + 1] @o0(0 "Concat" "")
  v4 = cast v1 {{to=f16, saturate=false}} : f16[1, 4] @o1(1 "Cast" "")
  return v3 "present.key", v4 "{output}"
}}
"#
        )
    };
    assert_eq!(found(&text("y")), ["past.key=present.key", "past.scale"]);
    assert_eq!(found(&text("present.scale")), ["past.key=present.key"]);
}

/// A column of a value of another kind is not a state, even where its type is the other tensor's.
#[test]
fn parts_of_values_are_no_state() {
    let text = r#"graph "halves" {
  input v0 "past" : f32[4]
  v1 = neg v0 : f32[4] @o0(0 "Neg" "")
  return v1 "present"
}
"#;
    let choice = Choice::parse(&["past=present".to_string()], None).unwrap();
    keep(&mut parse(text).unwrap(), &choice).unwrap();
    let parts: [fn(&mut Graph); 2] = [
        |graph| drop(graph.input_parts.insert(0, ("past".to_string(), Part::Data))),
        |graph| drop(graph.output_parts.insert(0, ("present".to_string(), Part::Data))),
    ];
    for make_part in parts {
        let mut graph = parse(text).unwrap();
        make_part(&mut graph);
        let message = keep(&mut graph, &choice).unwrap_err().message;
        assert!(message.contains("only dense tensors of whole bytes can be state"), "{message}");
    }
}

#[test]
fn parts_of_values_are_told_by_their_new_places() {
    let text = r#"graph "two" {
  input v0 "past" : f32[4]
  input v1 "list" : f32[4]
  v2 = neg v0 : f32[4] @o0(0 "Neg" "")
  v3 = neg v1 : f32[4] @o1(1 "Neg" "")
  return v2 "present", v3 "next"
}
"#;
    let mut graph = parse(text).unwrap();
    graph.input_parts.insert(1, ("list".to_string(), Part::Data));
    graph.output_parts.insert(1, ("next".to_string(), Part::Data));
    keep(&mut graph, &Choice::parse(&["past=present".to_string()], None).unwrap()).unwrap();
    let name = |at: usize| graph.inputs[at].name.as_str();
    assert_eq!(
        graph.input_parts.iter().map(|(&at, part)| (name(at), part.1)).collect::<Vec<_>>(),
        [("list", Part::Data)]
    );
    let name = |at: usize| graph.outputs[at].0.as_str();
    assert_eq!(
        graph.output_parts.iter().map(|(&at, part)| (name(at), part.1)).collect::<Vec<_>>(),
        [("next", Part::Data)]
    );
}

/// A loop over time from `h` to `last`, whose state is then changed by `more`.
fn looped(more: &str, last: &str) -> String {
    format!(
        r#"graph "looped" {{
  input v0 "h" : f32[1, 2]
  input v1 "other" : f32[1, 2]
  v2 = reshape v0 {{shape=[2]}} : f32[2] @o0(0 "Squeeze" "")
  v3 = scan v2 {{trip=4, states=1, scans=0, reverse=[false], body=graph "step" {{
    input v0 "h" : f32[2]
    v1 = tanh v0 : f32[2] @o0(0 "Tanh" "")
    return v1 "h"
  }}}} : f32[2] @o1(1 "Scan" "")
  v4 = reshape v3 {{shape=[1, 2]}} : f32[1, 2] @o2(2 "Unsqueeze" "")
{more}  return {last} "last"
}}
"#
    )
}

/// A first and a last state of a loop are a pair; a value computed from the last one, or that is not a state, is none.
#[test]
fn states_of_loops_are_carried_as_they_are() {
    assert_eq!(found(&looped("", "v4")), ["h=last"]);
    let node = "@o3(3 \"Node\" \"\")";
    for more in [
        format!("  v5 = neg v4 : f32[1, 2] {node}\n"),
        format!("  v5 = neg v1 : f32[1, 2] {node}\n"),
        format!("  v5 = add v4, v1 : f32[1, 2] {node}\n"),
        // Half of it is a state.
        format!(
            "  v6 = slice v4 {{starts=[0, 0], steps=[1, 1], sizes=[1, 1]}} : f32[1, 1] {node}\n  \
               v7 = slice v1 {{starts=[0, 0], steps=[1, 1], sizes=[1, 1]}} : f32[1, 1] @o3\n  \
               v8 = neg v7 : f32[1, 1] @o3\n  v5 = concat v6, v8 {{axis=1}} : f32[1, 2] @o3\n"
        ),
    ] {
        assert_eq!(found(&looped(&more, "v5")), [""; 0], "{more}");
    }
    assert_eq!(found(&looped("", "v1")), [""; 0]);
}

/// Readers of the tensor before a run and of the one after it see the elements that there are, for any capacity; so does a
/// caller that takes either as another output.
#[test]
fn readers_of_a_growing_state_see_what_is_there() {
    let text = r#"graph "growing" {
  symbol s0 "past"
  input v0 "x" : f32[1]
  input v1 "past" : f32[s0]
  v2 = concat v1, v0 {axis=0} : f32[s0 + 1] @o0(0 "Concat" "")
  v3 = neg v1 : f32[s0] @o1(1 "Neg" "")
  v4 = neg v2 : f32[s0 + 1] @o2(2 "Neg" "")
  return v2 "present", v1 "before", v2 "after", v3 "minus_before", v4 "minus_after"
}
"#;
    let plain = parse(text).unwrap();
    let mut kept = plain.clone();
    let pair = "past=present".parse().unwrap();
    keep(&mut kept, &Choice { pairs: vec![pair], capacity: Some(8), ..Choice::default() }).unwrap();
    assert_eq!(kept.states.len(), 1);
    assert_eq!(onnxc_ir::verify::verify(&kept), Ok(()));
    let given = [Tensor::from_slice(&[1], &[5f32]), Tensor::from_slice(&[3], &[2f32, 3.0, 4.0])];
    let (wanted, found) = (interp::run(&plain, &given).unwrap(), interp::run(&kept, &given).unwrap());
    let named = |graph: &Graph, tensors: Vec<Tensor>| -> BTreeMap<String, Tensor> {
        graph.outputs.iter().map(|(name, _)| name.clone()).zip(tensors).collect()
    };
    assert_eq!(named(&kept, found), named(&plain, wanted), "{kept}");
}

/// Panels along an axis are the tensor's own axis and one more behind the others.
#[test]
fn panels_and_the_whole_tensor() {
    let ty =
        |shape: &[usize]| TensorType::new(DType::F32, shape.iter().map(|&size| Dim::from(size)).collect());
    for (axis, size, whole, stored) in [
        (1, 20usize, [2, 20, 64], [2, 2, 64, 16]),
        (2, 64, [2, 20, 64], [2, 20, 4, 16]),
        (0, 2, [2, 20, 64], [1, 20, 64, 16]),
    ] {
        let panels = Panels { axis, width: 16, size: Dim::from(size) };
        assert_eq!(panels.stored(&ty(&whole)), ty(&stored));
        assert_eq!(panels.whole(&ty(&stored)), ty(&whole));
    }
}
