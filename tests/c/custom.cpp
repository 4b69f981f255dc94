/* Functions of models with operators of one's own, by onnxc_op.hpp: what custom.c has, with the prefix cpp_. */
#include <onnxc_op.hpp>

#include <algorithm>
#include <numeric>
#include <stdexcept>

using onnxc::BFloat16;
using onnxc::In;
using onnxc::Op;
using onnxc::Out;
using onnxc::ShapesOp;
using onnxc::Sizes;
using onnxc::Status;

ONNXC_OP(cpp_scale, [](In<float> x, std::optional<In<float>> absent, Out<float> y, const Op &op) {
    if (absent) {
        return Status(2);
    }
    const auto alpha = static_cast<float>(op.number("alpha", 1.0));
    const auto step = static_cast<float>(op.integer_at("steps", op.count("steps", ONNXC_ATTRIBUTE_INTS) - 1) + op.integer("missing", 0));
    const float added = step + (*op.tensor<float>("offset"))[0];
    op.parallel_for(static_cast<std::int64_t>(y.size()), [&](std::int64_t begin, std::int64_t end) {
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); i++) {
            y[i] = alpha * x[i] + added;
        }
    });
    return Status::ok;
})

/* A struct, and one that gives nothing. */
namespace {
struct RowSums {
    void operator()(In<float> x, Out<float> sums, Out<std::int64_t> columns) const {
        const auto width = static_cast<std::size_t>(x.dim(1));
        for (std::size_t row = 0; row < sums.size(); row++) {
            sums[row] = std::accumulate(x.begin() + row * width, x.begin() + (row + 1) * width, 0.0f);
        }
        columns[0] = x.dim(1);
    }
};
} // namespace
ONNXC_OP(cpp_row_sums, RowSums{})

ONNXC_OP(cpp_reverse, [](In<float> x, Out<float> y, const Op &op) {
    float *const scratch = op.scratch<float>();
    if (op.scratch_size<float>() != 16) {
        return 3;
    }
    for (std::size_t i = 0; i < y.size(); i++) {
        scratch[i % 16] = x[x.size() - 1 - i];
        y[i] = scratch[i % 16];
    }
    return 0;
})

ONNXC_OP_SHAPES(cpp_positive_shapes, [](In<float> x, Sizes y) {
    y[0] = std::count_if(x.begin(), x.end(), [](float value) { return value > 0; });
})
ONNXC_OP(cpp_positive, [](In<float> x, Out<float> y) {
    std::copy_if(x.begin(), x.end(), y.begin(), [](float value) { return value > 0; });
})

ONNXC_OP_SHAPES(cpp_twice_shapes, [](In<onnxc_string> x, const ShapesOp &op) {
    std::size_t bytes = 0;
    for (const onnxc_string &element : x) {
        bytes += 2 * element.size + op.text("between").size();
    }
    op.set_scratch_size<char>(bytes);
})
ONNXC_OP(cpp_twice, [](In<onnxc_string> x, Out<onnxc_string> y, const Op &op) {
    char *at = op.scratch<char>();
    for (std::size_t i = 0; i < x.size(); i++) {
        char *const begin = at;
        for (const std::string_view piece : { onnxc::text(x[i]), op.text("between"), onnxc::text(x[i]) }) {
            at = std::copy(piece.begin(), piece.end(), at);
        }
        y[i] = { begin, static_cast<std::size_t>(at - begin) };
    }
})

/* Elements of any type, as bytes. */
ONNXC_OP(cpp_copy, [](In<onnxc::Any> x, Out<onnxc::Any> y) {
    if (x.dtype() != y.dtype() || x.size() != y.size()) {
        return Status(9);
    }
    std::copy(x.begin(), x.end(), y.begin());
    return Status::ok;
})

/* What does not fit a node of one input and one output, of floats. */
ONNXC_OP(cpp_wrong_type, [](In<double>, Out<float>) {})
ONNXC_OP(cpp_other_type, [](In<BFloat16>, Out<float>) {})
ONNXC_OP(cpp_second_input, [](In<float>, In<float>, Out<float>) {})
ONNXC_OP(cpp_second_output, [](In<float>, Out<float>, Out<float>) {})
ONNXC_OP(cpp_no_input, [](std::optional<In<float>>, std::optional<In<float>>, const Op &op) { op.input<float>(2); })
ONNXC_OP(cpp_throws, [](In<float>, Out<float>) { throw std::runtime_error("no"); })
ONNXC_OP(cpp_throws_in_parts, [](In<float>, Out<float> y, const Op &op) {
    op.parallel_for(static_cast<std::int64_t>(y.size()), [](std::int64_t, std::int64_t) { throw 1; });
})
