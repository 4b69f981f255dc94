//! The small models that showed faults once, where the folder with them exists beside the repository: each is right now, or refused with
//! the message that it should have. `defects.md` names the class of each and what finds others of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use onnxc_proto::TensorProto;
use onnxc_proto::tensor_proto::DataType;
use onnxc_tests::suite;
use prost::Message;

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");

/// The folder beside that of the models.
fn faults() -> Option<PathBuf> {
    let folder = suite::models_folder()?.with_file_name("faults");
    let found = folder.is_dir();
    assert!(found || std::env::var_os("ONNXC_REQUIRE_MODELS").is_none(), "{} is missing", folder.display());
    found.then_some(folder)
}

/// Runs the command in a folder of its own, which is empty.
fn onnxc(arguments: &[&str]) -> (Output, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(ONNXC).args(arguments).current_dir(folder.path()).output().unwrap();
    (output, folder)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs the command; the exit code must be this one, and every part in what it prints.
#[track_caller]
fn expect(arguments: &[&str], code: i32, parts: &[&str]) {
    let (output, _) = onnxc(arguments);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{arguments:?}: no `{part}` in {text}");
    }
}

/// The outputs are those that lie beside the model, at every level of optimization.
#[test]
fn values() {
    let Some(folder) = faults() else { return };
    for name in [
        "values/480_add_zero_then_reciprocal",
        "values/483_add_zero_vector_then_div",
        "models/222_if_unlike_ranks_222",
        "models/304_tree_leaf_base_values_logistic",
        "models/442_if_unlike_declared_rank2",
        "models/t5_pointer_generator",
    ] {
        let model = folder.join(name).join("model.onnx");
        let model = model.to_str().unwrap();
        for flags in [&["verify", model] as &[&str], &["verify", model, "-O0"], &["verify", model, "--exact"]]
        {
            expect(flags, 0, &["exact, max abs 0"]);
        }
    }
}

fn array(folder: &Path, name: &str) -> Vec<u8> {
    let bytes = fs::read(folder.join(name)).unwrap();
    let header = u16::from_le_bytes([bytes[8], bytes[9]]);
    bytes[10 + usize::from(header)..].to_vec()
}

/// NaN is not taken for a missing value where `missing_value_tracks_true` is 0, and compares unequal to 1.5 as the reference has it: labels
/// 7 for what is NaN or equal, 5 for the rest. (The outputs beside this model are another engine's.)
#[test]
fn a_missing_value_takes_the_false_branch() {
    let Some(folder) = faults() else { return };
    let model = folder.join("values/316_tree_nan_branch_neq_0");
    let data = model.join("test_data_set_0");
    for level in ["-O0", "-O3"] {
        let place = model.join("model.onnx");
        let arguments =
            ["run", place.to_str().unwrap(), "--data", data.to_str().unwrap(), "--output", "out", level];
        let (output, folder) = onnxc(&arguments);
        assert!(output.status.success(), "{}", text(&output));
        let labels = array(folder.path(), "out/l.npy");
        let labels: Vec<i64> =
            labels.chunks(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert_eq!(labels, [7, 7, 5, 5, 5], "{level}");
    }
}

/// A target that no tree votes for is +0 at every level.
#[test]
fn a_target_without_a_vote_is_plus_zero() {
    let Some(folder) = faults() else { return };
    let model = folder.join("values/tree_minus_zero.onnx");
    let of_level = |level: &str| {
        let (output, folder) =
            onnxc(&["run", model.to_str().unwrap(), "--random", "1", "--output", "out", level]);
        assert!(output.status.success(), "{}", text(&output));
        ["out/y.npy", "out/z.npy"].map(|name| array(folder.path(), name))
    };
    let (least, most) = (of_level("-O0"), of_level("-O3"));
    assert_eq!(least, most);
    let minus_zero = (-0f32).to_le_bytes();
    for output in &least {
        assert!(output.len() == 8 && output.chunks(4).all(|bytes| bytes != minus_zero));
    }
}

#[test]
fn strings_and_numbers_are_both_written() {
    let Some(folder) = faults() else { return };
    let model = folder.join("values/string_and_number_outputs.onnx");
    let (output, place) = onnxc(&["run", model.to_str().unwrap(), "--random", "1", "--output", "out"]);
    assert!(output.status.success(), "{}", text(&output));
    let mut kinds: Vec<String> = fs::read_dir(place.path().join("out"))
        .unwrap()
        .map(|entry| entry.unwrap().path().extension().unwrap().to_string_lossy().into_owned())
        .collect();
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds, ["npy", "pb"]);
}

/// What runs fail at, with the values: which input, element and bound.
#[test]
fn messages() {
    let Some(folder) = faults() else { return };
    let cases: &[(&str, &[&str])] = &[
        (
            "messages/137_pad_negative_beyond",
            &["`Pad_0`", "pads -8 and 5 of axis 0", "6 elements of data `x`"],
        ),
        ("messages/325_onehot_unknown_zeros0", &["`OneHotEncoder_0`", "element [1] of X `x`", "`a`, `b`"]),
        (
            "messages/410_gather_out_of_range",
            &["`Gather_0`", "element [1] of indices `i` is 7", "between -3 and 2"],
        ),
        (
            "messages/412_scatternd_out_of_range",
            &["`ScatterND_0`", "element [0, 1] of indices `i` is 9", "between -4 and 3"],
        ),
        (
            "messages/415_expand_bad",
            &["`Expand_0`", "element 0 of shape `s` is 2", "dimension 0 of input `x`, which is 3"],
        ),
        ("messages/417_slice_step_zero", &["`Slice_0`", "steps `st`", "must not be 0"]),
        (
            "messages/419_split_sum_wrong",
            &["`Split_0`", "split `s` is [1, 2]", "dimension 1 of input `x`, which is 4"],
        ),
        (
            "models/411_gathernd_out_of_range",
            &["`GatherND_0`", "element [0, 1] of indices `i` is 9", "between -4 and 3"],
        ),
    ];
    for (name, parts) in cases {
        let model = folder.join(name).join("model.onnx");
        let data = folder.join(name).join("test_data_set_0");
        let arguments = ["run", model.to_str().unwrap(), "--data", data.to_str().unwrap(), "--output", "out"];
        let (output, place) = onnxc(&arguments);
        let text = text(&output);
        assert!(!output.status.success(), "{name}: {text}");
        let written = fs::read_dir(place.path().join("out")).map_or(0, Iterator::count);
        assert_eq!(written, 0, "{name}: something was written");
        for part in *parts {
            assert!(text.contains(part), "{name}: no `{part}` in {text}");
        }
        for check in ["(check ", " is not 0", "?2"] {
            assert!(!text.contains(check), "{name}: `{check}` in {text}");
        }
    }
}

/// Models that others run, and that run: a pool window larger than its data, an input without a shape.
#[test]
fn runs() {
    let Some(folder) = faults() else { return };
    for (name, line) in [
        ("models/034_maxpool_dilation_zero_output", "y: f32[1, 1, 0]"),
        ("models/235_input_without_shape", "y: f32[3]"),
    ] {
        let (model, data) = (folder.join(name).join("model.onnx"), folder.join(name).join("test_data_set_0"));
        expect(
            &["run", model.to_str().unwrap(), "--data", data.to_str().unwrap(), "--output", "out"],
            0,
            &[line],
        );
    }
    let model = folder.join("models/unknown_rank.onnx");
    let model = model.to_str().unwrap();
    expect(&["check", model], 1, &["--input-shape x="]);
    expect(&["check", model, "--input-shape", "x=N,3"], 0, &["no problems"]);
    let resize = folder.join("models/resize_300_n.onnx");
    let arguments = ["run", resize.to_str().unwrap(), "--random", "1", "--size", "n=1500", "--output", "out"];
    expect(&arguments, 0, &["y: f32[1, 9, 5]"]);
}

/// What is accepted in silence, with a warning that `--strict` makes an error, or refused: all single files.
#[test]
fn verdicts() {
    let Some(folder) = faults() else { return };
    const SILENT: &str = "no problems";
    let cases: &[(&str, i32, &[&str])] = &[
        ("models/constant_twice.onnx", 0, &["warning:", "`Constant_0`", "defines `c` again"]),
        ("models/domain_not_imported.onnx", 0, &["warning:", "com.microsoft", "version 1"]),
        ("models/resize_300_n.onnx", 0, &[SILENT]),
        ("models/stft_rank2.onnx", 0, &["warning:", "`STFT_0`", "2 axes and must have 3"]),
        ("models/unknown_attribute.onnx", 0, &["warning:", "`epsion`", "epsilon"]),
        ("seeds/infer_03476.onnx", 1, &["present_key", "present_value"]),
        ("seeds/infer_05160.onnx", 1, &["cats_strings", "cats_int64s"]),
        ("seeds/loop_ir3_body_initializer_input.onnx", 0, &[SILENT]),
        ("seeds/quantize_output_dtype_conflict.onnx", 1, &["output_dtype is i4", "zero point is u16"]),
        ("seeds/row140_attr_int_value_in_f.onnx", 1, &["`n1`", "axis", "INT"]),
        ("seeds/row155_constant_sparse_value.onnx", 0, &[SILENT]),
        ("seeds/row160_shadow_node_output.onnx", 0, &["warning:", "`a`"]),
        ("seeds/row196_fn_ref_unknown_attr.onnx", 0, &["warning:", "alpha", "function F does not have"]),
        ("seeds/row197_fn_call_unknown_attr.onnx", 0, &["warning:", "no attribute `zeta`"]),
        ("seeds/row203_fn_domain_not_imported.onnx", 1, &["`loc`", "imports no version"]),
        ("seeds/row286_tensor_two_fields.onnx", 0, &["warning:", "raw_data and float_data"]),
        ("seeds/row308_external_checksum_wrong.onnx", 0, &["warning:", "SHA-1", "checksum"]),
        ("seeds/row376_update_binding_nowhere.onnx", 1, &["`nowhere`"]),
        ("seeds/row395_device_config_mismatch.onnx", 1, &["`mm`", "`other`", "`cfg`"]),
        ("seeds/row414_upsample_at_10.onnx", 0, &["warning:", "deprecated at opset 10", "Resize"]),
        ("seeds/row480_split_unnamed.onnx", 0, &[SILENT]),
        ("seeds/row503_same_with_pads.onnx", 0, &["warning:", "auto_pad is SAME_UPPER", "pads"]),
        ("seeds/row505_string_default.onnx", 0, &[SILENT]),
    ];
    for (name, code, parts) in cases {
        let model = folder.join(name);
        let model = model.to_str().unwrap();
        expect(&["check", model], *code, parts);
        let is_warned = parts[0] == "warning:";
        expect(&["check", "--strict", model], if is_warned { 1 } else { *code }, &[]);
    }
    let sparse = folder.join("seeds/row155_constant_sparse_value.onnx");
    expect(&["run", sparse.to_str().unwrap(), "--random", "1", "--output", "out"], 0, &["y: f32[4]"]);
}

/// A default of strings holds where a run gives nothing else.
#[test]
fn a_default_of_strings_may_be_left_out() {
    let Some(folder) = faults() else { return };
    let place = tempfile::tempdir().unwrap();
    let words = ["a", "b"];
    let x = TensorProto {
        dims: vec![words.len() as i64],
        data_type: Some(DataType::String as i32),
        string_data: words.map(|word| word.as_bytes().to_vec().into()).to_vec(),
        ..Default::default()
    };
    let file = place.path().join("x.pb");
    fs::write(&file, x.encode_to_vec()).unwrap();
    let (model, x) = (folder.join("seeds/row505_string_default.onnx"), format!("x={}", file.display()));
    let run = ["run", model.to_str().unwrap(), "--overridable-defaults", "--input", &x, "--output", "out"];
    expect(&run, 0, &["out/"]);
}

/// Small files that ask for much: each within the time and memory of the processes that `hostile` limits, or refused by name.
#[test]
fn hostile() {
    let Some(folder) = faults() else { return };
    let hostile = folder.join("hostile");
    let place = |name: &str| hostile.join(name).to_str().unwrap().to_string();
    let (model, image) = (place("RGB.onnx"), place("jp2_abort.npy"));
    // A status of the run, not a signal.
    expect(&["run", &model, "--input", &image], 2, &["`ImageDecoder_0`", "memory"]);
    expect(&["check", &place("fif_14.onnx")], 1, &["error"]);
    expect(&["check", &place("manyouts_1000.onnx")], 0, &["no problems"]);
}
