/* onnxc_op.hpp: operators of one's own in C++17, as functions that models call; see onnxc_op in onnxc.h.
 *
 *     #include <onnxc_op.hpp>
 *
 *     ONNXC_OP(my_clip, [](onnxc::In<float> x, onnxc::Out<float> y, const onnxc::Op &op) {
 *         const float limit = float(op.number("limit", 1.0));
 *         for (std::size_t i = 0; i < y.size(); i++) {
 *             y[i] = std::min(x[i], limit);
 *         }
 *     })
 *
 * defines the function of `onnxc --custom-op mine.Clip=my_clip`. What follows the name is a lambda without overloads, or an object with
 * operator(). Its parameters say what it takes, in the order of the node: In<T> and std::optional<In<T>> are the next input, Out<T> the next
 * output, Sizes the sizes of the next output, Op the call itself. T is the type of the elements: bool, numbers, onnxc_string, Float16,
 * BFloat16, or Any. It gives nothing, a number or an onnxc::Status; only 0 is success.
 *
 * The function fails, with the Status that says why, where the node's tensors are not those of the parameters, and where an exception would
 * leave it: no exception gets into the model.
 */
#ifndef ONNXC_OP_HPP
#define ONNXC_OP_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "onnxc.h"

namespace onnxc {

/* What a function gives: 0, or any number of its own. These are of this header, and of the wrapper for Rust. */
enum class Status : std::int32_t {
    ok = 0,
    /* The node has fewer or more inputs or outputs than the function takes, or has left one out. */
    absent = 101,
    /* The elements of a tensor are of another type. */
    type = 102,
    /* The function has thrown. */
    exception = 103
};

enum class Float16 : std::uint16_t {};
enum class BFloat16 : std::uint16_t {};

/* Elements of any type, as bytes; the tensor has the type. */
using Any = std::byte;

namespace op_detail {

template <class T> constexpr std::int32_t dtype() {
    using E = std::remove_cv_t<T>;
    if constexpr (std::is_same_v<E, Float16>) {
        return ONNXC_FLOAT16;
    } else if constexpr (std::is_same_v<E, BFloat16>) {
        return ONNXC_BFLOAT16;
    } else if constexpr (std::is_same_v<E, onnxc_string>) {
        return ONNXC_STRING;
    } else if constexpr (std::is_same_v<E, bool>) {
        return ONNXC_BOOL;
    } else if constexpr (std::is_same_v<E, float>) {
        return ONNXC_FLOAT;
    } else if constexpr (std::is_same_v<E, double>) {
        return ONNXC_DOUBLE;
    } else {
        static_assert(std::is_integral_v<E>, "no element type of ONNX; onnxc::Any takes all");
        constexpr bool is_signed = std::is_signed_v<E>;
        return sizeof(E) == 1   ? (is_signed ? ONNXC_INT8 : ONNXC_UINT8)
               : sizeof(E) == 2 ? (is_signed ? ONNXC_INT16 : ONNXC_UINT16)
               : sizeof(E) == 4 ? (is_signed ? ONNXC_INT32 : ONNXC_UINT32)
                                : (is_signed ? ONNXC_INT64 : ONNXC_UINT64);
    }
}

/* A status on its way out of a function. */
struct Failure {
    Status status;
};

} // namespace op_detail

/* A view of the elements of a tensor, row-major, and of its sizes. */
template <class T> class View {
  public:
    explicit View(const onnxc_tensor &tensor) : tensor_(&tensor), size_(count(tensor)) {
        if constexpr (!is_any) {
            if (tensor.dtype != op_detail::dtype<T>()) {
                throw op_detail::Failure{ tensor.dtype == 0 ? Status::absent : Status::type };
            }
        } else if (tensor.dtype == 0) {
            throw op_detail::Failure{ Status::absent };
        }
    }

    T *data() const noexcept { return static_cast<T *>(tensor_->data); }
    /* Elements; of Any bytes. */
    std::size_t size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    T *begin() const noexcept { return data(); }
    /* Nothing is added to a null pointer. */
    T *end() const noexcept { return size_ == 0 ? data() : data() + size_; }
    T &operator[](std::size_t at) const noexcept { return data()[at]; }
    std::size_t rank() const noexcept { return static_cast<std::size_t>(tensor_->rank); }
    std::int64_t dim(std::size_t axis) const noexcept { return tensor_->dims[axis]; }
    /* An onnxc_dtype. */
    std::int32_t dtype() const noexcept { return tensor_->dtype; }
    const onnxc_tensor &tensor() const noexcept { return *tensor_; }

  private:
    static constexpr bool is_any = std::is_same_v<std::remove_cv_t<T>, Any>;

    static std::size_t count(const onnxc_tensor &tensor) noexcept {
        return is_any ? tensor.bytes : static_cast<std::size_t>(onnxc_tensor_elements(&tensor));
    }

    const onnxc_tensor *tensor_;
    std::size_t size_;
};

/* The elements of an input, which are only read, and those of an output, which are to be written. */
template <class T> struct In : View<const T> {
    using View<const T>::View;
};
template <class T> struct Out : View<T> {
    using View<T>::View;
};

/* The sizes of an output, for a function for shapes, which sets those that are -1. */
class Sizes {
  public:
    explicit Sizes(const onnxc_tensor &tensor) noexcept : tensor_(&tensor) {}

    std::size_t size() const noexcept { return static_cast<std::size_t>(tensor_->rank); }
    std::int64_t &operator[](std::size_t axis) const noexcept { return tensor_->dims[axis]; }

  private:
    const onnxc_tensor *tensor_;
};

/* A string among elements or attributes. */
inline std::string_view text(const onnxc_string &element) noexcept {
    return element.size == 0 ? std::string_view() : std::string_view(element.data, element.size);
}

/* A call: attributes, scratch, threads, and tensors by number. */
class Op {
  public:
    explicit Op(const onnxc_op *op) noexcept : op_(op) {}

    std::size_t input_count() const noexcept { return op_->input_count; }
    std::size_t output_count() const noexcept { return op_->output_count; }
    template <class T> In<T> input(std::size_t at) const { return In<T>(tensor(op_->inputs, op_->input_count, at)); }
    template <class T> Out<T> output(std::size_t at) const { return Out<T>(tensor(op_->outputs, op_->output_count, at)); }
    Sizes sizes(std::size_t at) const { return Sizes(tensor(op_->outputs, op_->output_count, at)); }
    bool has_input(std::size_t at) const noexcept { return at < op_->input_count && op_->inputs[at].dtype != 0; }

    /* An attribute, or what it is where the node has none of this name and kind. */
    std::int64_t integer(const char *name, std::int64_t otherwise) const noexcept { return onnxc_op_int(op_, name, otherwise); }
    double number(const char *name, double otherwise) const noexcept { return onnxc_op_float(op_, name, otherwise); }
    std::string_view text(const char *name, std::string_view otherwise = {}) const noexcept {
        std::size_t size = 0;
        const char *found = onnxc_op_string(op_, name, &size);
        return found == nullptr ? otherwise : std::string_view(found, size);
    }
    /* How many values a list has, and one of them. */
    std::size_t count(const char *name, onnxc_attribute_kind kind) const noexcept { return onnxc_op_count(op_, name, kind); }
    std::int64_t integer_at(const char *name, std::size_t at) const {
        std::size_t size = 0;
        const std::int64_t *found = onnxc_op_ints(op_, name, &size);
        if (at >= size) {
            throw op_detail::Failure{ Status::absent };
        }
        return found[at];
    }
    double number_at(const char *name, std::size_t at) const noexcept { return onnxc_op_float_at(op_, name, at); }
    std::string_view text_at(const char *name, std::size_t at) const noexcept {
        std::size_t size = 0;
        const char *found = onnxc_op_string_at(op_, name, at, &size);
        return found == nullptr ? std::string_view() : std::string_view(found, size);
    }
    template <class T> std::optional<In<T>> tensor(const char *name) const {
        const onnxc_tensor *found = onnxc_op_tensor(op_, name);
        return found == nullptr ? std::nullopt : std::optional<In<T>>(In<T>(*found));
    }

    /* Memory for the call: room for scratch_size<T>() objects, which are trivial and have no values yet. */
    template <class T> T *scratch() const noexcept {
        static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_default_constructible_v<T>);
        static_assert(alignof(T) <= ONNXC_WORKSPACE_ALIGNMENT);
        return static_cast<T *>(op_->scratch);
    }
    template <class T> std::size_t scratch_size() const noexcept { return op_->scratch_bytes / sizeof(T); }

    /* Calls body(begin, end) for disjoint parts of 0 to count, on the threads of the run if it has any. */
    template <class F> void parallel_for(std::int64_t count, F &&body) const {
        const onnxc_options &options = *op_->options;
        if (count <= 0) {
            return;
        }
        if (options.parallel_for == nullptr) {
            body(std::int64_t(0), count);
            return;
        }
        using Body = std::remove_reference_t<F>;
        const onnxc_range_fn part = [](void *job, std::int64_t begin, std::int64_t end) noexcept -> std::int32_t {
            try {
                (*static_cast<Body *>(job))(begin, end);
                return 0;
            } catch (const op_detail::Failure &failure) {
                return static_cast<std::int32_t>(failure.status);
            } catch (...) {
                return static_cast<std::int32_t>(Status::exception);
            }
        };
        const std::int32_t code = options.parallel_for(options.pool, 0, count, part, const_cast<std::remove_cv_t<Body> *>(&body));
        if (code != 0) {
            throw op_detail::Failure{ static_cast<Status>(code) };
        }
    }

    const onnxc_op *raw() const noexcept { return op_; }

  private:
    static const onnxc_tensor &tensor(const onnxc_tensor *tensors, std::size_t count, std::size_t at) {
        if (at >= count) {
            throw op_detail::Failure{ Status::absent };
        }
        return tensors[at];
    }

    const onnxc_op *op_;
};

/* A call of a function for shapes, which may ask for other scratch. */
class ShapesOp : public Op {
  public:
    explicit ShapesOp(onnxc_op *op) noexcept : Op(op), op_(op) {}

    template <class T> void set_scratch_size(std::size_t count) const noexcept { op_->scratch_bytes = count * sizeof(T); }

  private:
    onnxc_op *op_;
};

namespace op_detail {

/* The parameters of what can be called. */
template <class F> struct Signature : Signature<decltype(&F::operator())> {};
template <class C, class R, class... A> struct Signature<R (C::*)(A...)> {
    using Parameters = std::tuple<std::decay_t<A>...>;
    using Result = R;
};
template <class C, class R, class... A> struct Signature<R (C::*)(A...) const> : Signature<R (C::*)(A...)> {};
template <class C, class R, class... A> struct Signature<R (C::*)(A...) noexcept> : Signature<R (C::*)(A...)> {};
template <class C, class R, class... A> struct Signature<R (C::*)(A...) const noexcept> : Signature<R (C::*)(A...)> {};

/* Which input and output come next. */
struct Next {
    std::size_t input = 0;
    std::size_t output = 0;
};

template <class T> struct Argument;
template <class T> struct Argument<In<T>> {
    template <class C> static In<T> of(const C &call, Next &next) { return call.template input<T>(next.input++); }
};
template <class T> struct Argument<std::optional<In<T>>> {
    template <class C> static std::optional<In<T>> of(const C &call, Next &next) {
        const std::size_t at = next.input++;
        return call.has_input(at) ? std::optional<In<T>>(call.template input<T>(at)) : std::nullopt;
    }
};
template <class T> struct Argument<Out<T>> {
    template <class C> static Out<T> of(const C &call, Next &next) {
        static_assert(std::is_same_v<C, Op>, "a function for shapes has no elements of outputs: Sizes are their sizes");
        return call.template output<T>(next.output++);
    }
};
template <> struct Argument<Sizes> {
    template <class C> static Sizes of(const C &call, Next &next) {
        static_assert(std::is_same_v<C, ShapesOp>, "sizes are for functions for shapes, see ONNXC_OP_SHAPES");
        return call.sizes(next.output++);
    }
};
template <> struct Argument<Op> {
    template <class C> static const C &of(const C &call, Next &) { return call; }
};
template <> struct Argument<ShapesOp> {
    static const ShapesOp &of(const ShapesOp &call, Next &) { return call; }
};

template <class F, class C, class... A> Status apply(F &function, const C &call, std::tuple<A...> *) {
    Next next;
    /* Braces keep the order of the arguments. */
    std::tuple<decltype(Argument<A>::of(call, next))...> arguments{ Argument<A>::of(call, next)... };
    /* What takes tensors by number takes what it wants. */
    for (std::size_t at = next.input; next.input > 0 && at < call.input_count(); at++) {
        if (call.has_input(at)) {
            return Status::absent;
        }
    }
    if (next.output > 0 && next.output < call.output_count()) {
        return Status::absent;
    }
    if constexpr (std::is_void_v<typename Signature<F>::Result>) {
        std::apply(function, arguments);
        return Status::ok;
    } else {
        return static_cast<Status>(std::apply(function, arguments));
    }
}

template <class C, class P, class F> std::int32_t run(P *op, F &&function) noexcept {
    using Parameters = typename Signature<std::remove_reference_t<F>>::Parameters;
    try {
        const C call(op);
        return static_cast<std::int32_t>(apply(function, call, static_cast<Parameters *>(nullptr)));
    } catch (const Failure &failure) {
        return static_cast<std::int32_t>(failure.status);
    } catch (...) {
        return static_cast<std::int32_t>(Status::exception);
    }
}

} // namespace op_detail
} // namespace onnxc

/* Defines a function that computes an operator, and one that determines sizes of its outputs (`shapes=NAME`). */
#define ONNXC_OP(name, ...)                                                                                            \
    extern "C" std::int32_t name(const onnxc_op *onnxc_call);                                                          \
    extern "C" std::int32_t name(const onnxc_op *onnxc_call) {                                                         \
        return ::onnxc::op_detail::run<::onnxc::Op>(onnxc_call, __VA_ARGS__);                                          \
    }
#define ONNXC_OP_SHAPES(name, ...)                                                                                     \
    extern "C" std::int32_t name(onnxc_op *onnxc_call);                                                                \
    extern "C" std::int32_t name(onnxc_op *onnxc_call) {                                                               \
        return ::onnxc::op_detail::run<::onnxc::ShapesOp>(onnxc_call, __VA_ARGS__);                                    \
    }

#endif
