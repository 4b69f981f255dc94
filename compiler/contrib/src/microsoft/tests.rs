//! Nodes of com.microsoft: results computed by hand, and what is refused. Drawn models of every operator are in the
//! tests of the whole compiler.

use onnxc_proto::build;

use super::DOMAIN;
use onnxc_import::{ImportOptions, NoExternalData, import};
use onnxc_ir::graph::{DType, Tensor};
use onnxc_ops::node_case::{Case, ramp};

fn case(name: &'static str) -> Case {
    crate::tests::case(DOMAIN, name, 1)
}

/// The message that refuses a node.
fn refusal(case: Case) -> String {
    match case.lower() {
        Ok(_) => panic!("the node is lowered"),
        Err(error) => error.to_string(),
    }
}

fn n_bits(bits: i64, packed: &[u8]) -> Case {
    case("MatMulNBits")
        .input::<f32>(&[1, 4], &[1.0, 2.0, -1.0, 0.5])
        .constant::<u8>(&[2, 2, packed.len() / 4], packed)
        .constant::<f32>(&[2, 2], &[0.5, 2.0, 1.0, -1.0])
        .int("K", 4)
        .int("N", 2)
        .int("block_size", 2)
        .int("bits", bits)
}

#[test]
fn gemm_gives_integers_or_reals() {
    let operands = || {
        case("QGemm")
            .input::<u8>(&[2, 2], &[1, 200, 7, 9])
            .constant::<f32>(&[], &[0.1])
            .constant::<u8>(&[], &[5])
            .constant::<i8>(&[2, 2], &[3, 4, 5, -128])
            .constant::<f32>(&[2], &[0.2, 0.1])
            .constant::<i8>(&[2], &[2, 2])
            .constant::<i32>(&[1, 2], &[10, -20])
    };
    // (1 - 5) * (3 - 2) + (200 - 5) * (5 - 2) + 10 = 591
    operands().gives(0, &[2, 2], &[11.82, -253.78, 0.48, -5.36]);
    let case = operands().constant::<f32>(&[], &[1.5]).constant::<u8>(&[], &[100]);
    case.gives(0, &[2, 2], &[108.0, 0.0, 100.0, 96.0]);
}

#[test]
fn sums_and_products_without_zero_points() {
    let operands = |name| {
        case(name)
            .input::<u8>(&[3], &[10, 200, 250])
            .constant::<f32>(&[], &[0.5])
            .missing()
            .constant::<u8>(&[1], &[100])
            .constant::<f32>(&[], &[0.25])
            .constant::<u8>(&[], &[40])
            .constant::<f32>(&[], &[2.0])
    };
    // (10 * 0.5 + (100 - 40) * 0.25) / 2 = 10
    operands("QLinearAdd").gives(0, &[3], &[10.0, 58.0, 70.0]);
    operands("QLinearMul").gives(0, &[3], &[38.0, 255.0, 255.0]);
}

#[test]
fn concatenation_rescales_each_tensor() {
    let first = || {
        case("QLinearConcat")
            .constant::<f32>(&[], &[0.5])
            .constant::<u8>(&[], &[10])
            .input::<u8>(&[1, 2], &[0, 20])
            .constant::<f32>(&[], &[1.0])
            .constant::<u8>(&[], &[4])
            .int("axis", 1)
    };
    let both =
        first().input::<i8>(&[1, 1], &[-100]).constant::<f32>(&[], &[0.25]).constant::<i8>(&[], &[-120]);
    both.gives(0, &[1, 3], &[2.0, 42.0, 20.0]);
    let message = refusal(first().input::<u8>(&[1, 1], &[1]));
    assert!(message.contains("4 inputs after Y_zero_point"), "{message}");
    let other = first().input::<u8>(&[1, 1], &[1]).constant::<f32>(&[], &[0.25]).constant::<i8>(&[], &[0]);
    let message = refusal(other);
    assert!(message.contains("tensor 1 is u8[1, 1]") && message.contains("zero point i8[]"), "{message}");
}

#[test]
fn weights_of_few_bits() {
    // 4 bits: the first of a byte is the low half, and 8 is zero.
    n_bits(4, &[0x9a, 0x08, 0x7f, 0x81]).gives(0, &[1, 2], &[-6.0, -2.0]);
    let zeros = n_bits(4, &[0x9a, 0x08, 0x7f, 0x81]).constant::<u8>(&[2], &[0x12, 0x34]);
    zeros.gives(0, &[1, 2], &[-4.0, 12.5]);
    // 8 bits are not packed.
    n_bits(8, &[130, 126, 128, 132, 129, 128, 127, 128]).gives(0, &[1, 2], &[3.0, 0.0]);
    let message = refusal(n_bits(3, &[0; 4]));
    assert!(message.contains("bits is `3`; it may be one of 2, 4, 8"), "{message}");
    let message = refusal(n_bits(4, &[0; 4]).int("weight_prepacked", 1));
    assert!(message.contains("weight_prepacked 1"), "{message}");
    let message = refusal(n_bits(4, &[0; 4]).int("block_size", 0));
    assert!(message.contains("block_size is 0"), "{message}");
    let message = refusal(n_bits(4, &[0; 4]).int("K", i64::MAX));
    assert!(message.contains("dimension 1 of A"), "{message}");
    let half = Tensor::new(DType::F16, vec![2, 2], vec![0; 8].into());
    let message = refusal(n_bits(4, &[0; 4]).operand(half, true, &[]));
    assert!(message.contains("zero_points are f16; they must be u8 or f32"), "{message}");
}

#[test]
fn groups_pick_scales_by_element() {
    let case = n_bits(4, &[0x99, 0x99, 0x99, 0x99]).missing().constant::<i32>(&[4], &[1, 0, 0, 1]);
    // All weights are 1, before scales 2, 0.5, 0.5, 2 and -1, 1, 1, -1.
    case.gives(0, &[1, 2], &[3.5, -0.5]);
}

#[test]
fn normal_floats_are_looked_up() {
    let case = |kind| {
        case("MatMulBnb4")
            .input::<f32>(&[1, 3], &[1.0, 2.0, 4.0])
            .constant::<u8>(&[2], &[0xf0, 0x7f])
            .constant::<f32>(&[2], &[2.0, 10.0])
            .int("K", 3)
            .int("N", 1)
            .int("block_size", 2)
            .int("quant_type", kind)
    };
    // The first is in the high half: 1, -1, 0.
    case(1).gives(0, &[1, 1], &[-2.0]);
    case(0).gives(0, &[1, 1], &[9.5]);
    let message = refusal(case(2));
    assert!(message.contains("quant_type is `2`"), "{message}");
}

#[test]
fn gathers_of_blocks() {
    let case = |bits| {
        case("GatherBlockQuantized")
            .constant::<u8>(&[2, 4], &[0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe])
            .input::<i64>(&[1], &[-1])
            .constant::<f32>(&[2, 8 / bits as usize], &[1.0; 16][..16 / bits as usize])
            .int("block_size", 4)
            .int("bits", bits)
    };
    case(4).gives(0, &[1, 8], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    let message = refusal(case(4).int("block_size", 8));
    assert!(message.contains("dimension 1 of scales is 2; it must be the number of blocks"), "{message}");
    let message = refusal(case(4).int("quantize_axis", 0));
    assert!(message.contains("quantize_axis 0 of packed bytes"), "{message}");
    let message = refusal(case(4).int("gather_axis", 1));
    assert!(message.contains("gather_axis is quantize_axis, 1"), "{message}");
}

#[test]
fn attention_refuses_what_it_does_not_compute() {
    let case = || {
        case("QAttention")
            .input::<u8>(&[1, 2, 1], &[3, 5])
            .constant::<u8>(&[1, 3], &[1, 2, 3])
            .constant::<f32>(&[3], &[0.0, 0.0, 1.0])
            .constant::<f32>(&[], &[1.0])
            .constant::<f32>(&[], &[1.0])
            .constant::<i32>(&[1], &[1])
            .int("num_heads", 1)
    };
    // Only the first key is there: 3 * 3 + 1.
    case().outputs(2).gives(0, &[1, 2, 1], &[10.0, 10.0]);
    case().outputs(2).gives(1, &[2, 1, 1, 2, 1], &[6.0, 10.0, 10.0, 16.0]);
    let message = refusal(case().int("do_rotary", 1));
    assert!(message.contains("do_rotary 1"), "{message}");
    let message = refusal(case().int("num_heads", 2));
    assert!(message.contains("num_heads"), "{message}");
}

/// Scores of keys that are masked would all be the same number.
#[test]
fn a_mask_of_one_column_masks_nothing() {
    let case = |mask: &[usize]| {
        case("Attention")
            .input::<f32>(&[1, 2, 1], &[3.0, 5.0])
            .constant::<f32>(&[1, 3], &[1.0, 2.0, 3.0])
            .missing()
            .constant::<i32>(mask, &vec![0; mask.iter().product()])
            .float("mask_filter_value", -1e30)
            .int("num_heads", 1)
    };
    // Both queries attend to the second key, of value 5 * 3.
    case(&[1, 1]).gives(0, &[1, 2, 1], &[15.0, 15.0]);
    case(&[1, 2]).gives(0, &[1, 2, 1], &[12.0, 12.0]);
    case(&[1, 2, 2]).gives(0, &[1, 2, 1], &[12.0, 12.0]);
}

#[test]
fn windows_of_symbolic_images_channels_last() {
    let case = case("QLinearAveragePool")
        .symbolic::<u8>(&["n", "h", "w", ""], &[1, 2, 2, 1], &[10, 20, 30, 40])
        .constant::<f32>(&[], &[0.5])
        .constant::<u8>(&[], &[8])
        .constant::<f32>(&[], &[0.25])
        .constant::<u8>(&[], &[1])
        .ints("kernel_shape", &[2, 1])
        .int("channels_last", 1);
    // ((10 - 8) + (30 - 8)) / 2 * 0.5 / 0.25 + 1
    case.gives(0, &[1, 1, 2, 1], &[25.0, 45.0]);
}

#[test]
fn joined_activations_are_named() {
    let conv = |name: &str, params: &[f32]| {
        case("FusedConv")
            .input::<f32>(&[1, 1, 2], &[-1.0, 2.0])
            .constant::<f32>(&[1, 1, 1], &[1.0])
            .str("activation", name)
            .floats("activation_params", params)
    };
    conv("Clip", &[0.0, 1.5]).gives(0, &[1, 1, 2], &[0.0, 1.5]);
    let message = refusal(conv("Clip", &[0.0]));
    assert!(message.contains("activation_params is [0.0]; activation Clip takes 2"), "{message}");
    let message = refusal(conv("Gelu", &[]));
    assert!(message.contains("activation is `Gelu`"), "{message}");
}

#[test]
fn blocks_of_channels_are_whole() {
    let case = |filters: usize| {
        crate::tests::case("com.microsoft.nchwc", "Conv", 1)
            .input::<f32>(&[1, 1, 1, 1], &[2.0])
            .constant::<f32>(&[filters, 1, 1, 1], &vec![3.0; filters])
    };
    case(16).gives(0, &[1, 16, 1, 1], &[6.0; 16]);
    let biased = case(16).constant::<f32>(&[16], &[0.5; 16]);
    biased.gives(0, &[1, 16, 1, 1], &[6.5; 16]);
    let added = case(16).missing().input::<f32>(&[1, 16, 1, 1], &[0.25; 16]);
    added.gives(0, &[1, 16, 1, 1], &[6.25; 16]);
    let message = refusal(case(20));
    assert!(
        message.contains("filters must divide into blocks of 16: 20 is not a multiple of 16"),
        "{message}"
    );
}

#[test]
fn experts_refuse_what_they_do_not_compute() {
    let case = || {
        case("MoE")
            .input::<f32>(&[1, 1], &[2.0])
            .input::<f32>(&[1, 2], &[0.0, 1.0])
            .constant::<f32>(&[2, 1, 1], &[1.0, 3.0])
            .missing()
            .constant::<f32>(&[2, 1, 1], &[1.0, 0.5])
            .int("normalize_routing_weights", 1)
    };
    // The second expert: 2 * 3 * 0.5.
    case().gives(0, &[1, 1], &[3.0]);
    let message = refusal(case().int("k", 3));
    assert!(
        message.contains("k is 3") || message.contains("k, which is 3") || message.contains("k (k is 3)"),
        "{message}"
    );
    let message = refusal(case().int("use_sparse_mixer", 1));
    assert!(message.contains("use_sparse_mixer 1"), "{message}");
    let message = refusal(case().str("activation_type", "swiglu"));
    assert!(message.contains("swiglu_fusion 0 with no weights of fc3"), "{message}");
}

/// Two experts; the second one is picked. Its zero points are of whole rows, two to a byte.
#[test]
fn experts_of_few_bits() {
    let case = || {
        case("QMoE")
            .input::<f32>(&[1, 2], &[1.0, 2.0])
            .input::<f32>(&[1, 2], &[0.0, 1.0])
            .constant::<u8>(&[2, 4, 1], &[0, 0, 0, 0, 0x98, 0x79, 0x0a, 0xf3])
            .constant::<f32>(&[2, 4], &[9.0, 9.0, 9.0, 9.0, 0.5, 1.0, 2.0, 0.25])
            .missing()
            .constant::<u8>(&[2, 2, 2], &[0, 0, 0, 0, 0x09, 0xa0, 0x14, 0x61])
            .constant::<f32>(&[2, 2], &[9.0, 9.0, 1.0, 0.5])
            .missing()
            .missing()
            .missing()
            .missing()
            .constant::<u8>(&[2, 2], &[0, 0, 0x87, 0x39])
            .constant::<u8>(&[2, 1], &[0, 0x58])
    };
    // Rows (1, 2), (1, -1), (1, -9) and (0, 12) times their scales give 2.5, -1, -34 and 6.
    case().gives(0, &[1, 2], &[14.5, 1.75]);
    let message = refusal(case().str("quant_type", "fp4"));
    assert!(message.contains("quant_type `fp4`: int is supported"), "{message}");
}

/// With a block size scales and zero points have a column for each block, without one neither has.
#[test]
fn zero_points_of_experts_lie_as_their_scales() {
    let case = |scales: &[usize], zeros: &[usize]| {
        let bytes = vec![0x88u8; zeros.iter().product()];
        let case = case("QMoE").ramp(&[1, 4], 1).ramp(&[1, 2], 2).constant::<u8>(&[2, 4, 2], &[0x98; 16]);
        let case = case.constant_ramp(scales, 3).missing().constant::<u8>(&[2, 4, 2], &[0x79; 16]);
        let case = case.constant_ramp(scales, 4).missing().missing().missing().missing();
        case.constant::<u8>(zeros, &bytes).constant::<u8>(zeros, &bytes)
    };
    let (rows, blocks) = ([2, 4], [2, 4, 2]);
    let (of_rows, of_blocks) = ([2, 2], [2, 4, 1]);
    assert_eq!(case(&rows, &of_rows).run().unwrap()[0].shape, [1, 4]);
    assert_eq!(case(&blocks, &of_blocks).int("block_size", 2).run().unwrap()[0].shape, [1, 4]);
    for (case, size) in [(case(&rows, &of_blocks), 0), (case(&blocks, &of_rows).int("block_size", 2), 2)] {
        let message = refusal(case);
        assert!(message.contains("zero points of fc1 are"), "{message}");
        assert!(message.contains(&format!("with block_size {size}")), "{message}");
    }
}

#[test]
fn distances_beyond_the_furthest_share_a_bucket() {
    let case = case("RelativePositionBias")
        .input::<f32>(&[4, 1], &[10.0, 20.0, 30.0, 40.0])
        .constant::<i64>(&[1], &[7])
        .constant::<i64>(&[1], &[1])
        .int("max_distance", 4);
    // Up to a distance of 1 buckets are exact; 2 + 2 * log2(3 / 2) is below 4.
    case.gives(0, &[1, 1, 7, 1], &[10.0, 20.0, 30.0, 40.0, 40.0, 40.0, 40.0]);
}

/// Pairs in turn by time, height and width, as long as their sections last.
#[test]
fn pairs_turn_by_one_of_three_positions() {
    let case = |sections: &[i64]| {
        case("MRotaryEmbedding")
            .input::<f32>(&[1, 1, 10], &[1.0; 10])
            .input::<i64>(&[3, 1, 1], &[0, 1, 2])
            .constant::<f32>(&[3, 5], &[[1.0; 5], [2.0; 5], [3.0; 5]].concat())
            .constant::<f32>(&[3, 5], &[0.0; 15])
            .ints("mrope_section", sections)
            .int("mrope_layout", 1)
    };
    case(&[3, 1, 1]).gives(0, &[1, 1, 10], &[1.0, 2.0, 3.0, 1.0, 1.0, 1.0, 2.0, 3.0, 1.0, 1.0]);
    case(&[2, 2, 1]).gives(0, &[1, 1, 10], &[1.0, 2.0, 3.0, 1.0, 2.0, 1.0, 2.0, 3.0, 1.0, 2.0]);
    case(&[4, 1, 0]).gives(0, &[1, 1, 10], &[1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0]);
}

#[test]
fn words_end_with_their_last_character() {
    let case = case("WordConvEmbedding")
        .input::<i32>(&[2, 4], &[1, 2, 1, 0, 0, 1, 1, 1])
        .constant::<f32>(&[1, 1, 2, 1], &[1.0, -1.0])
        .constant::<f32>(&[1], &[0.25])
        .constant::<f32>(&[3, 1], &[-3.0, 0.5, -1.0]);
    // tanh(0.5 + 1 + 0.25), as the window (1, 0), of 3.75, is behind the word. A word without a first character is none.
    case.gives(0, &[2, 1], &[0.9413755, 0.0]);
}

#[test]
fn transforms_and_hashes_say_what_they_take() {
    let case = |name: &'static str| case(name).input::<f32>(&[2], &[1.0, 2.0]);
    case("Rfft").gives(0, &[2, 2], &[3.0, 0.0, -1.0, 0.0]);
    let message = refusal(case("Rfft").int("signal_ndim", 2));
    assert!(message.contains("signal_ndim 2: 1 is supported"), "{message}");
    let message = refusal(case("UnfoldTensor").int("size", 3));
    assert!(message.contains("is 2; it must be at least size, which is 3"), "{message}");
}

/// One query behind two cached tokens.
fn decoder() -> Case {
    case("GroupQueryAttention")
        .input::<f32>(&[1, 1, 2], &[1.0, 0.0])
        .input::<f32>(&[1, 1, 2], &[1.0, 1.0])
        .input::<f32>(&[1, 1, 2], &[3.0, -3.0])
        .input::<f32>(&[1, 1, 2, 2], &[1.0, 2.0, 1.0, 4.0])
        .input::<f32>(&[1, 1, 2, 2], &[0.0, 0.0, 0.0, 0.0])
        .input::<i32>(&[1], &[2])
        .int("num_heads", 1)
        .int("kv_num_heads", 1)
}

#[test]
fn a_decoder_and_its_cache() {
    let case = || decoder().constant::<i32>(&[], &[3]).outputs(3);
    case().gives(0, &[1, 1, 2], &[1.0, -1.0]);
    case().gives(1, &[1, 1, 3, 2], &[1.0, 2.0, 1.0, 4.0, 1.0, 1.0]);
    // Only the last token is in a window of one.
    case().int("local_window_size", 1).gives(0, &[1, 1, 2], &[3.0, -3.0]);
}

/// A row of two tokens, which a third one pads, and one of three; all weights are equal.
#[test]
fn queries_see_later_tokens_if_not_causal() {
    let case = |causal| {
        case("GroupQueryAttention")
            .input::<f32>(&[2, 3, 1], &[0.0; 6])
            .input::<f32>(&[2, 3, 1], &[1.0; 6])
            .input::<f32>(&[2, 3, 1], &[3.0, 6.0, 30.0, 3.0, 6.0, 30.0])
            .missing()
            .missing()
            .input::<i32>(&[2], &[1, 2])
            .constant::<i32>(&[], &[3])
            .int("num_heads", 1)
            .int("kv_num_heads", 1)
            .int("causal", causal)
    };
    case(0).gives(0, &[2, 3, 1], &[4.5, 4.5, 4.5, 13.0, 13.0, 13.0]);
    case(1).gives(0, &[2, 3, 1], &[3.0, 4.5, 4.5, 3.0, 4.5, 13.0]);
}

/// Numbers of ONNX Runtime 1.32.
#[test]
fn a_decoder_whose_cache_is_quantized() {
    let case = |kind: &str, bits: i64, scales: [&[f32]; 2]| {
        let case = case("GroupQueryAttention")
            .input::<f32>(&[1, 1, 8], &[1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
            .input::<f32>(&[1, 1, 8], &[1.0, 1.0, -9.0, 0.3, 0.8, 1.3, -1.3, 40.0])
            .input::<f32>(&[1, 1, 8], &[3.0, -3.0, 0.4, -0.4, 0.7, 1.1, 100.0, -100.0]);
        let case = if bits == 8 {
            let bytes = |from: i8, step: i8| (0..16).map(|at| from + step * at).collect::<Vec<i8>>();
            let case = case.input::<i8>(&[1, 1, 2, 8], &bytes(-7, 1));
            case.input::<i8>(&[1, 1, 2, 8], &bytes(-20, 3))
        } else {
            let case = case.input::<u8>(&[1, 1, 2, 4], &[0xca, 0x3a, 0x71, 0x08, 0x12, 0x9f, 0x55, 0xe0]);
            case.input::<u8>(&[1, 1, 2, 4], &[0x1a, 0x3c, 0x31, 0x58, 0x92, 0x2f, 0x65, 0xb0])
        };
        let case = case.input::<i32>(&[1], &[2]).constant::<i32>(&[], &[3]);
        let case = case.missing().missing().missing().missing().missing();
        let case = case.constant::<f32>(&[scales[0].len()], scales[0]);
        let case = case.constant::<f32>(&[scales[1].len()], scales[1]).outputs(3);
        let case = case.str("k_quant_type", kind).str("v_quant_type", kind).float("scale", 1.0);
        case.int("kv_cache_bit_width", bits).int("num_heads", 1).int("kv_num_heads", 1)
    };
    let whole: [&[f32]; 2] = [&[0.5], &[0.25]];
    let each: [&[f32]; 2] =
        [&[0.5, 0.25, 1.0, 0.5, 0.5, 2.0, 0.5, 0.5], &[0.25, 0.5, 0.5, 0.25, 0.5, 0.5, 1.0, 1.0]];
    let bytes = |from: i32, step: i32, last: [i32; 8]| {
        [(0..16).map(|at| from + step * at).collect::<Vec<_>>(), last.to_vec()].concat()
    };
    let keys = |last| bytes(-7, 1, last);
    let values = |last| bytes(-20, 3, last);
    let half_keys = |last: [i32; 4]| [&[0xca, 0x3a, 0x71, 0x08, 0x12, 0x9f, 0x55, 0xe0][..], &last].concat();
    let half_values =
        |last: [i32; 4]| [&[0x1a, 0x3c, 0x31, 0x58, 0x92, 0x2f, 0x65, 0xb0][..], &last].concat();
    for (kind, bits, scales, y, keys, values) in [
        (
            "PER_TENSOR",
            8,
            whole,
            [2.238145, -1.209527, 1.250636, 0.912350, 1.973289, 2.412350, 21.818672, -17.542419],
            keys([2, 2, -18, 1, 2, 3, -3, 80]),
            values([12, -12, 2, -2, 3, 4, 127, -128]),
        ),
        (
            "PER_CHANNEL",
            8,
            each,
            [2.342485, -0.931023, 1.924404, 0.695632, 2.891263, 3.713549, 74.809898, -59.765980],
            keys([2, 4, -9, 1, 2, 1, -3, 80]),
            values([12, -6, 1, -2, 1, 2, 100, -100]),
        ),
        (
            "PER_TENSOR",
            4,
            whole,
            [0.970126, -1.842860, 0.811913, -0.967233, -0.806107, -0.400606, 0.658758, -1.220490],
            half_keys([170, 144, 186, 245]),
            half_values([15, 106, 203, 15]),
        ),
        (
            "PER_CHANNEL",
            4,
            each,
            [1.118936, -3.241337, 1.255198, -0.876444, -1.5, -0.750577, 3.473433, -5.480364],
            half_keys([202, 144, 154, 245]),
            half_values([47, 105, 169, 15]),
        ),
    ] {
        let case = case(kind, bits, scales);
        case.gives(0, &[1, 1, 8], &y);
        let width = bits as usize;
        case.gives(1, &[1, 1, 3, width], &keys.into_iter().map(f64::from).collect::<Vec<_>>());
        case.gives(2, &[1, 1, 3, width], &values.into_iter().map(f64::from).collect::<Vec<_>>());
    }
}

/// The declared length of a cache of symbolic length after the call determines whether tokens are written into it or appended.
#[test]
fn caches_are_as_long_as_declared() {
    let cache = |name: &str, length: &str| build::f32_value(name, &["1", "1", length, "8"]);
    let token = |name: &str| build::f32_value(name, &["1", "1", "8"]);
    let count = |name: &str, dims: &[&str]| build::value(name, DType::I32.to_onnx(), dims);
    let length = |declared: &str| {
        let inputs = ["q", "k", "v", "past_k", "past_v", "last", "total"];
        let node = build::node("GroupQueryAttention", &inputs, &["y", "present_k", "present_v"]);
        let node = node.with(build::int("num_heads", 1)).with(build::int("kv_num_heads", 1));
        let node = onnxc_proto::NodeProto { domain: Some(DOMAIN.to_string()), ..node };
        let pasts = [cache("past_k", "room"), cache("past_v", "room")];
        let counts = [count("last", &["1"]), count("total", &[])];
        let inputs = [["q", "k", "v"].map(token).to_vec(), pasts.to_vec(), counts.to_vec()].concat();
        let outputs = vec![token("y"), cache("present_k", declared), cache("present_v", declared)];
        let mut model = build::model(21, build::graph(inputs, vec![node], outputs));
        model.opset_import.push(build::opset(DOMAIN, 1));
        let graph =
            import(&model, &ImportOptions::default(), &NoExternalData, &crate::tests::table()).unwrap().graph;
        [1, 2].map(|at| graph.output_ty(at).shape[2].to_string())
    };
    assert_eq!(length("room"), ["s0", "s0"]);
    assert_eq!(length("more"), ["1 + s0", "1 + s0"]);
}

#[test]
fn a_decoder_whose_inputs_contradict() {
    let message = refusal(decoder().constant::<i32>(&[], &[4]));
    assert!(message.contains("total_sequence_length"), "{message}");
    let whole = || decoder().constant::<i32>(&[], &[3]);
    let message = refusal(whole().int("do_rotary", 1));
    assert!(message.contains("do_rotary without cos_cache and sin_cache"), "{message}");
    let message = refusal(whole().int("causal", 0).int("local_window_size", 2));
    assert!(message.contains("local_window_size 2"), "{message}");
    let message = refusal(whole().int("sliding_window_cache", 1));
    assert!(message.contains("sliding_window_cache 1"), "{message}");
    let message = refusal(whole().str("k_quant_type", "PER_TENSOR"));
    assert!(message.contains("only one of the two is quantized"), "{message}");
    let quantized = whole().str("k_quant_type", "PER_TENSOR").str("v_quant_type", "PER_TENSOR");
    let message = refusal(quantized.int("kv_cache_bit_width", 2));
    assert!(message.contains("kv_cache_bit_width") && message.contains("8, 4"), "{message}");
    let message = refusal(whole().int("kv_num_heads", 2));
    assert!(message.contains("kv_num_heads"), "{message}");
}

/// Of sizes that only the caller gives.
#[test]
fn sizes_of_attributes_are_checked_when_the_model_runs() {
    let projected = |name: &'static str, rank: usize, columns: usize| {
        let (dims, shape) = ([&["b"][..], &["s", "e"]].concat(), [1, 2, 3]);
        let case = case(name).symbolic(&dims[3 - rank..], &shape[3 - rank..], &ramp(6, 1));
        let case = case.symbolic(&["e", "w"], &[3, columns], &ramp(3 * columns, 2));
        let case = case.symbolic(&["w"], &[columns], &ramp(columns, 3));
        case.int("num_heads", 1).ints("qkv_hidden_sizes", &[2, 2, 5])
    };
    let packed = |columns| {
        let case = projected("PackedAttention", 2, columns);
        case.input::<i32>(&[1, 2], &[0, 1]).input::<i32>(&[2], &[0, 2])
    };
    assert_eq!(projected("Attention", 3, 9).run().unwrap()[0].shape, [1, 2, 5]);
    assert_eq!(packed(9).run().unwrap()[0].shape, [2, 5]);
    for case in [projected("Attention", 3, 12), packed(12)] {
        let message = case.run().unwrap_err().to_string();
        assert!(message.contains("it must be the sum of qkv_hidden_sizes, which is"), "{message}");
    }
    let nothing = case("Rfft").symbolic(&["n", "m"], &[1, 0], &[0f32; 0]);
    let short = case("UnfoldTensor").symbolic(&["n"], &[2], &[1f32, 2.0]).int("dim", 0).int("size", 3);
    for (case, claim) in
        [(nothing, "is 0; it must be 1 or more"), (short, "it must be at least size, which is 3")]
    {
        let message = case.run().unwrap_err().to_string();
        assert!(message.contains(claim), "{message}");
    }
}

#[test]
fn sizes_of_queries_keys_and_values_are_not_negative() {
    for sizes in [[-1, -1, 5], [2, 2, -1]] {
        let case = case("Attention").ramp(&[1, 2, 3], 1).ramp(&[3, 3], 2).ramp(&[3], 3);
        let message = refusal(case.int("num_heads", 1).ints("qkv_hidden_sizes", &sizes));
        assert!(
            message.contains("a size of qkv_hidden_sizes is -1; it must be 0 or more"),
            "{sizes:?}: {message}"
        );
    }
}

/// Which axes a bias is repeated along may depend on sizes of the run.
#[test]
fn sides_on_which_a_bias_is_repeated() {
    let softmax = |is_inner: i64, bias: &[usize]| {
        let case = case("BiasSoftmax").ramp(&[3, 2, 4], 1);
        let values = ramp(bias.iter().product(), 2);
        case.symbolic(&["a", "b", "c"], bias, &values).int("axis", 2).int("is_inner_broadcast", is_inner)
    };
    for (is_inner, bias, fits) in [
        (1, [3, 1, 4], true),
        (1, [1, 2, 4], false),
        (0, [1, 2, 4], true),
        (0, [3, 1, 4], false),
        (1, [1, 1, 4], true),
        (0, [3, 2, 4], true),
    ] {
        match softmax(is_inner, &bias).run() {
            Ok(results) => assert!(fits && results[0].shape == [3, 2, 4], "{is_inner} {bias:?}"),
            Err(error) => {
                assert!(!fits && error.to_string().contains("contradict"), "{bias:?}: {error}")
            }
        }
    }
}

/// Tokens before this call that no past holds are in no cache, for any length of the query.
#[test]
fn a_decoder_without_a_past_begins_at_the_first_token() {
    let case = |total: i32, queries: usize| {
        let case =
            case("GroupQueryAttention").symbolic(&["b", "s", "2"], &[1, queries, 2], &ramp(2 * queries, 1));
        let case = case.input::<f32>(&[1, 2, 2], &ramp(4, 2)).input::<f32>(&[1, 2, 2], &ramp(4, 3));
        let case = case.missing().missing().input::<i32>(&[1], &[total - 1]).constant::<i32>(&[], &[total]);
        case.int("num_heads", 1).int("kv_num_heads", 1).outputs(3)
    };
    assert_eq!(case(2, 2).run().unwrap()[1].shape, [1, 1, 2, 2]);
    let message = case(5, 2).run().unwrap_err().to_string();
    assert!(message.contains("it must be at most the length of past_key"), "{message}");
}

/// Where no token came before, the position of the first one determines those of the others; otherwise each has its own.
#[test]
fn positions_of_the_first_tokens() {
    let outputs = |past: usize, positions: [i64; 2]| {
        let caches = ramp(4 * past, 4);
        let case = case("GroupQueryAttention").input::<f32>(&[1, 2, 4], &ramp(8, 1));
        let case = case.input::<f32>(&[1, 2, 4], &ramp(8, 2)).input::<f32>(&[1, 2, 4], &ramp(8, 3));
        let case = case.symbolic::<f32>(&["", "", "p", ""], &[1, 1, past, 4], &caches);
        let case = case.symbolic::<f32>(&["", "", "p", ""], &[1, 1, past, 4], &caches);
        let case = case.input::<i32>(&[1], &[past as i32 + 1]).input::<i32>(&[], &[past as i32 + 2]);
        let case = case.input::<f32>(&[16, 2], &ramp(32, 5)).input::<f32>(&[16, 2], &ramp(32, 6));
        let case = case.input::<i64>(&[1, 2], &positions).int("do_rotary", 1);
        case.int("num_heads", 1).int("kv_num_heads", 1).outputs(3).run().unwrap()
    };
    assert_eq!(outputs(0, [5, 9]), outputs(0, [5, 6]));
    assert_ne!(outputs(0, [5, 6]), outputs(0, [4, 6]));
    assert_ne!(outputs(1, [5, 9]), outputs(1, [5, 6]));
}

/// A scale of 0 is none given, of 1 it is one.
#[test]
fn a_scale_of_queries() {
    let output = |scale: Option<f32>| {
        let case = case("GroupQueryAttention").input::<f32>(&[1, 2, 4], &ramp(8, 1));
        let case = case.input::<f32>(&[1, 2, 4], &ramp(8, 2)).input::<f32>(&[1, 2, 4], &ramp(8, 3));
        let case = case.missing().missing().input::<i32>(&[1], &[1]).constant::<i32>(&[], &[2]);
        let case = case.int("num_heads", 1).int("kv_num_heads", 1).outputs(3);
        let case = scale.into_iter().fold(case, |case, scale| case.float("scale", scale));
        case.run().unwrap().remove(0)
    };
    assert_eq!(output(Some(0.0)), output(None));
    assert_eq!(output(Some(0.5)), output(None), "1 / sqrt(4)");
    assert_ne!(output(Some(1.0)), output(None));
}

/// A scale of 0 is none given: it is 1 / sqrt(4). One of 1 leaves the products with the keys, -1 and 1, as they are.
#[test]
fn a_scale_of_one_token() {
    let case = |scale: Option<f32>| {
        let case = case("DecoderMaskedMultiHeadAttention").input::<f32>(&[1, 1, 4], &[1.0, 0.0, -1.0, 0.5]);
        let case = case.input::<f32>(&[1, 1, 2, 4], &[1.0, 0.0, 2.0, 0.0, 0.0, 1.0, 0.0, 2.0]);
        let case = case.input::<f32>(&[1, 1, 2, 4], &[1.0, 2.0, 3.0, 4.0, -1.0, 0.0, -3.0, 0.0]);
        let case = case.int("num_heads", 1);
        scale.into_iter().fold(case, |case, scale| case.float("scale", scale))
    };
    let usual = [-0.4621172, 0.5378828, -1.3863515, 1.0757657];
    case(None).gives(0, &[1, 1, 4], &usual);
    case(Some(0.0)).gives(0, &[1, 1, 4], &usual);
    case(Some(1.0)).gives(0, &[1, 1, 4], &[-0.7615942, 0.2384058, -2.2847825, 0.4768117]);
}

/// The last tokens are looked for in the source, first one, then more of them.
#[test]
fn where_the_source_goes_on_behind_the_last_tokens() {
    let case = |source: &[i64], tokens: &[i64], most: i64, found: f64| {
        let case = case("BifurcationDetector").symbolic(&["s"], &[source.len()], source);
        let case = case.symbolic(&["t"], &[tokens.len()], tokens).input::<i64>(&[], &[0]);
        let case = case.int("min_ngram_size", 1).int("max_ngram_size", most).outputs(2);
        let kept: Vec<f64> = tokens.iter().map(|&token| token as f64).collect();
        case.gives(0, &[tokens.len()], &kept);
        case.gives(1, &[], &[found]);
    };
    for most in [1, 2, 3] {
        case(&[1, 5, 3, 4], &[2, 5], most, 2.0);
        case(&[1, 2, 3], &[3], most, 3.0);
        case(&[1, 2, 3], &[9], most, -1.0);
        // Two places, and longer runs come nowhere.
        case(&[1, 5, 3, 5, 6], &[2, 5], most, -1.0);
        // Two places; one is after a 3.
        case(&[1, 5, 3, 5, 6], &[2, 3, 5], most, if most == 1 { -1.0 } else { 4.0 });
    }
}

#[test]
fn layouts_of_queries_keys_and_values() {
    let case = case("MultiHeadAttention").input::<f32>(&[1, 1, 2], &[1.0, 2.0]).int("num_heads", 1);
    let message = refusal(case.input::<f32>(&[1, 1, 2], &[1.0, 2.0]));
    assert!(message.contains("query has 3 axes, key 3 axes, value none"), "{message}");
}

/// Of tensors without elements, a reshape into heads holds for any number of features.
#[test]
fn features_that_do_not_divide_are_refused_without_elements() {
    let rotary = |width: usize, batch: usize| {
        let count = batch * 3 * width;
        crate::tests::case(DOMAIN, "RotaryEmbedding", 1)
            .symbolic(&["b", "s", "w"], &[batch, 3, width], &ramp(count, 1))
            .symbolic(&["b", "s"], &[batch, 3], &vec![0i64; batch * 3])
            .input(&[5, 4], &ramp(20, 2))
            .input(&[5, 4], &ramp(20, 3))
    };
    for batch in [0, 2] {
        assert_eq!(rotary(16, batch).run().unwrap()[0].shape, [batch, 3, 16]);
        let message = rotary(9, batch).run().unwrap_err().to_string();
        assert!(message.contains("divide into heads of the width of cos_cache"), "{message}");
    }
}

/// Numbers of ONNX Runtime 1.32; the second head's scale is 0.
#[test]
fn gates_of_linear_attention() {
    let case = || case("LinearAttentionGate").ramp(&[1, 2, 2], 1).ramp(&[2], 2).ramp(&[2], 3);
    let both = case().ramp(&[1, 2, 2], 4).outputs(2);
    both.gives(0, &[1, 2, 2], &[0.575939, 0.0, 0.974077, 0.0]);
    both.gives(1, &[1, 2, 2], &[0.268941, 0.679179, 0.437824, 0.2227]);
    let message = refusal(case().outputs(2));
    assert!(message.contains("beta without the input b"), "{message}");
    let message = refusal(case().ramp(&[1, 3, 2], 4));
    assert!(
        message.contains("dimension 1 of b `x` is 3; it must be dimension 1 of a `x`, which is 2"),
        "{message}"
    );
}

/// A memory of two places with one valid entry gives the same state as a memory of that entry alone.
#[test]
fn places_beyond_the_end_of_a_memory_are_not_seen() {
    let outputs = |memory: &[f32], length: Option<i32>| {
        let case = case("AttnLSTM").input::<f32>(&[2, 1, 1], &[0.5, -0.25]);
        let case = case.constant::<f32>(&[1, 4, 2], &[0.5, 1.0, -0.5, 0.75, 0.25, 1.0, 0.5, 2.0]);
        let case = case.constant::<f32>(&[1, 4, 1], &[0.5, -1.0, 0.25, 1.0]);
        let case = case.missing().missing().missing().missing().missing();
        let case = case.constant::<f32>(&[1, 1, 1], &[1.0]).constant::<f32>(&[1, 1, 1], &[0.5]);
        let case = case.constant::<f32>(&[1, 1], &[1.0]).input::<f32>(&[1, memory.len(), 1], memory);
        let case = match length {
            Some(length) => case.input::<i32>(&[1], &[length]),
            None => case,
        };
        case.int("hidden_size", 1).run().unwrap()
    };
    let one = outputs(&[1.5], None);
    assert_eq!(outputs(&[1.5, -3.0], Some(1)), one);
    assert_ne!(outputs(&[1.5, -3.0], None), one);
}
