/* onnxc.hpp: models compiled by onnxc in C++17, over the C ABI of onnxc.h.
 *
 *     #include "minilm.h"
 *     #include <onnxc.hpp>
 *
 *     onnxc::Model model(minilm_model());
 *     onnxc::Outputs outputs = model.run({{ids, {1, length}}, {mask, {1, length}}});
 *     onnxc::Span<const float> states = outputs["h"].as<float>();
 *
 * Inputs are views of memory of the caller, which must live while the run lasts. Everything else frees itself. Failures are
 * onnxc::Error. A Model may be used by one thread at a time; copies are cheap, and each has a workspace of its own.
 */
#ifndef ONNXC_HPP
#define ONNXC_HPP

#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "onnxc.h"

namespace onnxc {

/* A run failed: what() names the tensor and the dimension. */
class Error : public std::runtime_error {
  public:
    Error(std::int32_t status, const std::string &message) : std::runtime_error(message), status_(status) {}

    /* An onnxc_status. */
    std::int32_t status() const noexcept { return status_; }

  private:
    std::int32_t status_;
};

/* A view of elements one behind the other. */
template <class T> class Span {
  public:
    constexpr Span() noexcept = default;
    constexpr Span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}

    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr T &operator[](std::size_t at) const noexcept { return data_[at]; }

  private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

/* The onnxc_dtype of a C++ type. Types that C++ has no type for are given as numbers: see Tensor::of. */
template <class T> constexpr onnxc_dtype dtype_of() {
    using E = std::remove_cv_t<T>;
    if constexpr (std::is_same_v<E, bool>) {
        return ONNXC_BOOL;
    } else if constexpr (std::is_same_v<E, float>) {
        return ONNXC_FLOAT;
    } else if constexpr (std::is_same_v<E, double>) {
        return ONNXC_DOUBLE;
    } else {
        static_assert(std::is_integral_v<E>, "no element type of ONNX; Tensor::of takes any");
        constexpr bool is_signed = std::is_signed_v<E>;
        switch (sizeof(E)) {
        case 1:
            return is_signed ? ONNXC_INT8 : ONNXC_UINT8;
        case 2:
            return is_signed ? ONNXC_INT16 : ONNXC_UINT16;
        case 4:
            return is_signed ? ONNXC_INT32 : ONNXC_UINT32;
        default:
            return is_signed ? ONNXC_INT64 : ONNXC_UINT64;
        }
    }
}

using Dims = std::vector<std::int64_t>;

/* An input: a view of the caller's elements, with their type and their dims. Texts are copied as addresses only. */
class Tensor {
  public:
    /* An input that is left to its default. */
    Tensor() = default;

    /* The elements of the dims at an address: anything with data() and size(), such as a vector or a Span. */
    template <class C, class T = std::remove_pointer_t<decltype(std::declval<const C &>().data())>,
              std::enable_if_t<std::is_arithmetic_v<std::remove_cv_t<T>>, int> = 0>
    Tensor(const C &elements, Dims dims)
        : Tensor(of(elements.data(), elements.size() * sizeof(T), dtype_of<T>(), std::move(dims))) {}

    /* One number, of rank 0. */
    template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
    explicit Tensor(const T &number) : Tensor(of(&number, sizeof(T), dtype_of<T>(), {})) {}

    /* Texts, which stay where they are. */
    template <class C, class T = std::decay_t<decltype(*std::begin(std::declval<const C &>()))>,
              std::enable_if_t<std::is_convertible_v<const T &, std::string_view>, int> = 0, class = void>
    Tensor(const C &texts, Dims dims) : dims_(std::move(dims)), dtype_(ONNXC_STRING) {
        for (const auto &element : texts) {
            const std::string_view text = element;
            texts_.push_back({text.data(), text.size()});
        }
        bytes_ = texts_.size() * sizeof(onnxc_string);
    }

    /* Elements of any type. */
    static Tensor of(const void *data, std::size_t bytes, std::int32_t dtype, Dims dims) {
        Tensor tensor;
        tensor.data_ = data;
        tensor.bytes_ = bytes;
        tensor.dtype_ = dtype;
        tensor.dims_ = std::move(dims);
        return tensor;
    }

    /* As the C ABI has it, valid while this is not changed. `info` has the dims of one that is left to its default. */
    onnxc_tensor raw(const onnxc_value_info &info) const {
        if (dtype_ == 0) {
            return onnxc_make_tensor(nullptr, 0, info.dtype, info.rank, info.dims);
        }
        const void *data = dtype_ == ONNXC_STRING && data_ == nullptr ? texts_.data() : data_;
        return onnxc_make_tensor(data, bytes_, dtype_, static_cast<std::int32_t>(dims_.size()), dims_.data());
    }

  private:
    const void *data_ = nullptr;
    std::size_t bytes_ = 0;
    Dims dims_;
    std::int32_t dtype_ = 0;
    std::vector<onnxc_string> texts_;
};

namespace detail {

inline void *allocate(void *, std::size_t bytes, std::size_t alignment) {
    return ::operator new(bytes, std::align_val_t(alignment), std::nothrow);
}

inline void release(void *, void *memory, std::size_t, std::size_t alignment) {
    ::operator delete(memory, std::align_val_t(alignment));
}

/* Bytes at the alignment of a workspace. */
class Memory {
  public:
    Memory() = default;
    explicit Memory(std::size_t bytes)
        : memory_(::operator new(bytes == 0 ? 1 : bytes, std::align_val_t(ONNXC_WORKSPACE_ALIGNMENT))), bytes_(bytes) {}
    /* What a run allocated. */
    Memory(void *memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {}

    void *data() const noexcept { return memory_.get(); }
    std::size_t bytes() const noexcept { return bytes_; }

  private:
    struct Free {
        void operator()(void *memory) const noexcept {
            ::operator delete(memory, std::align_val_t(ONNXC_WORKSPACE_ALIGNMENT));
        }
    };
    std::unique_ptr<void, Free> memory_;
    std::size_t bytes_ = 0;
};

/* Bytes of a tensor; 0 where they do not fit: a run refuses such sizes, and says which. */
inline std::size_t byte_count(std::int32_t dtype, Span<const std::int64_t> dims) {
    std::size_t bits = static_cast<std::size_t>(onnxc_dtype_bits(dtype));
    for (const std::int64_t size : dims) {
        const auto factor = static_cast<std::size_t>(size);
        if (factor != 0 && bits > (SIZE_MAX - 7) / factor) {
            return 0;
        }
        bits *= factor;
    }
    return (bits + 7) / 8;
}

} // namespace detail

/* A view of a tensor that a run has written: an output, or an element of a sequence. */
class View {
  public:
    View(const void *data, std::size_t bytes, std::int32_t dtype, Span<const std::int64_t> dims)
        : data_(data), bytes_(bytes), dtype_(dtype), dims_(dims) {}

    std::int32_t dtype() const noexcept { return dtype_; }
    Span<const std::int64_t> dims() const noexcept { return dims_; }
    /* The bytes, of any type. */
    Span<const unsigned char> bytes() const noexcept { return {static_cast<const unsigned char *>(data_), bytes_}; }

    /* The elements; throws where they are of another type. f16 and bf16 are their bits, of std::uint16_t. */
    template <class T> Span<const T> as() const {
        const bool halves = std::is_same_v<T, std::uint16_t> && (dtype_ == ONNXC_FLOAT16 || dtype_ == ONNXC_BFLOAT16);
        if (dtype_ != dtype_of<T>() && !halves) {
            throw Error(ONNXC_BAD_DTYPE, "the tensor has elements of onnxc_dtype " + std::to_string(dtype_) + ", not " +
                                             std::to_string(dtype_of<T>()));
        }
        return {static_cast<const T *>(data_), bytes_ / sizeof(T)};
    }

    /* The texts of a tensor of strings, in memory of the outputs. */
    std::vector<std::string_view> texts() const {
        if (dtype_ != ONNXC_STRING) {
            throw Error(ONNXC_BAD_DTYPE, "the tensor has no texts but elements of onnxc_dtype " + std::to_string(dtype_));
        }
        std::size_t count = 1;
        for (const std::int64_t size : dims_) {
            count *= static_cast<std::size_t>(size);
        }
        std::vector<std::string_view> texts;
        const auto *strings = static_cast<const onnxc_string *>(data_);
        for (std::size_t at = 0; at < count; at++) {
            texts.emplace_back(strings[at].size == 0 ? "" : strings[at].data, strings[at].size);
        }
        return texts;
    }

  private:
    const void *data_;
    std::size_t bytes_;
    std::int32_t dtype_;
    Span<const std::int64_t> dims_;
};

/* The outputs of a run. */
class Outputs {
  public:
    std::size_t size() const noexcept { return tensors_.size(); }

    /* Output number `at` in the order of the C ABI. */
    template <class I, std::enable_if_t<std::is_integral_v<I>, int> = 0> View operator[](I at) const {
        const onnxc_tensor &tensor = tensors_.at(static_cast<std::size_t>(at));
        const Span<const std::int64_t> dims{tensor.dims, static_cast<std::size_t>(tensor.rank)};
        const std::size_t bytes =
            tensor.dtype == ONNXC_STRING ? tensor.bytes : detail::byte_count(tensor.dtype, dims);
        return {tensor.data, bytes, tensor.dtype, dims};
    }

    /* The output of a name; of a value with several parts such as `x.data`. */
    View operator[](std::string_view name) const { return (*this)[find(name)]; }

    /* The elements of the sequence of a name. */
    std::vector<View> sequence(std::string_view name) const {
        const onnxc_tensor &shapes = tensors_.at(find(std::string(name) + ".shapes"));
        const onnxc_tensor &data = tensors_.at(find(std::string(name) + ".data"));
        onnxc_sequence_walk walk = onnxc_sequence_begin(&shapes, &data);
        std::vector<View> elements;
        onnxc_tensor element;
        while (onnxc_sequence_next(&walk, &element) != 0) {
            elements.emplace_back(element.data, element.bytes, element.dtype,
                                  Span<const std::int64_t>{element.dims, static_cast<std::size_t>(element.rank)});
        }
        return elements;
    }

  private:
    friend class Model;

    std::size_t find(std::string_view name) const {
        for (std::int32_t at = 0; at < model_->output_count; at++) {
            if (name == onnxc_model_output(model_, at).name) {
                return static_cast<std::size_t>(at);
            }
        }
        throw std::out_of_range("model `" + std::string(onnxc_model_name(model_)) + "` has no output `" + std::string(name) +
                                "`");
    }

    const onnxc_model *model_ = nullptr;
    std::vector<onnxc_tensor> tensors_;
    std::vector<Dims> dims_;
    std::vector<detail::Memory> memory_;
};

/* Threads for the loops of runs; needs the runtime's library. */
class Pool {
  public:
    /* 0: one thread per processor. */
    explicit Pool(std::int64_t threads) : pool_(onnxc_pool_create(threads)) {
        if (pool_ == nullptr) {
            throw std::bad_alloc();
        }
    }

    void serve(onnxc_options &options) const {
        options.parallel_for = onnxc_pool_parallel_for;
        options.pool = pool_.get();
        options.threads = onnxc_pool_threads(pool_.get());
    }

  private:
    struct End {
        void operator()(onnxc_pool *pool) const noexcept { onnxc_pool_destroy(pool); }
    };
    std::unique_ptr<onnxc_pool, End> pool_;
};

/* A record of runs on a timeline, for https://ui.perfetto.dev; needs the runtime's library. It must outlive the runs. */
class Trace {
  public:
    /* Room for this number of events, 0: a million. */
    explicit Trace(std::size_t events = 0) : trace_(onnxc_trace_create(events)) {
        if (trace_ == nullptr) {
            throw std::bad_alloc();
        }
    }

    /* Behind the pool of these options. */
    void serve(onnxc_options &options) const { onnxc_trace_attach(trace_.get(), &options); }

    void write(const std::string &path) const {
        if (const std::int32_t number = onnxc_trace_write(trace_.get(), path.c_str())) {
            throw std::system_error(number, std::generic_category(), path);
        }
    }

  private:
    struct End {
        void operator()(onnxc_trace *trace) const noexcept { onnxc_trace_destroy(trace); }
    };
    std::unique_ptr<onnxc_trace, End> trace_;
};

/* A file of weights of a model that has them apart, mapped and checked; needs the runtime's library. It must outlive the runs. */
class Weights {
  public:
    /* Of `<name>_model()`. Throws Error where the file is not one of the model's, is damaged or cannot be read. */
    Weights(const std::string &path, const onnxc_model *model) {
        char message[512] = "";
        const std::int32_t status = onnxc_weights_map(path.c_str(), model, &weights_, message, sizeof message);
        if (status != ONNXC_OK) {
            throw Error(status, message);
        }
    }
    Weights(Weights &&other) noexcept : weights_(std::exchange(other.weights_, onnxc_weights{nullptr, 0, nullptr})) {}
    Weights &operator=(Weights &&other) noexcept {
        std::swap(weights_, other.weights_);
        return *this;
    }
    ~Weights() { onnxc_weights_unmap(&weights_); }

    void serve(onnxc_options &options) const noexcept {
        options.weights = weights_.data;
        options.weights_bytes = weights_.bytes;
    }

  private:
    onnxc_weights weights_{};
};

/* A thread that ends runs whose time is over. */
class Watchdog {
  public:
    Watchdog() : watchdog_(onnxc_watchdog_create()) {
        if (watchdog_ == nullptr) {
            throw std::bad_alloc();
        }
    }

    onnxc_watchdog *get() const noexcept { return watchdog_.get(); }

  private:
    struct End {
        void operator()(onnxc_watchdog *watchdog) const noexcept { onnxc_watchdog_destroy(watchdog); }
    };
    std::unique_ptr<onnxc_watchdog, End> watchdog_;
};

/* The time of a run, from here to the end of this object: `model.options().cancel = deadline.flag()`. */
class Deadline {
  public:
    Deadline(const Watchdog &watchdog, std::int64_t milliseconds)
        : watchdog_(watchdog.get()), watch_(onnxc_watchdog_start(watchdog_, &flag_, milliseconds)) {}
    Deadline(const Deadline &) = delete;
    Deadline &operator=(const Deadline &) = delete;
    ~Deadline() { onnxc_watchdog_stop(watchdog_, watch_); }

    const volatile std::int32_t *flag() const noexcept { return &flag_; }
    bool is_over() const noexcept { return flag_ != 0; }

  private:
    onnxc_watchdog *watchdog_;
    volatile std::int32_t flag_ = 0;
    std::int64_t watch_;
};

/* Tensors that stay from one run to the next. Copies go on by themselves. */
class State {
  public:
    /* An empty one; `symbols` are values of the model's symbols in their order, 0 for those that no state depends on. */
    State(const onnxc_model *model, std::vector<std::int64_t> symbols) : model_(model), symbols_(std::move(symbols)) {
        if (model->state_count == 0) {
            throw Error(ONNXC_BAD_STATE, "model `" + std::string(onnxc_model_name(model)) + "` has no state");
        }
        const std::int64_t bytes = onnxc_model_state_bytes(model)(symbols_.data(), symbols_.size());
        if (bytes < 0) {
            throw Error(static_cast<std::int32_t>(-bytes), "there is no state for these values of the symbols");
        }
        memory_ = detail::Memory(static_cast<std::size_t>(bytes));
        reset();
    }

    State(const State &other) : model_(other.model_), symbols_(other.symbols_), memory_(other.memory_.bytes()) {
        std::memcpy(memory_.data(), other.memory_.data(), memory_.bytes());
    }
    State(State &&) = default;
    State &operator=(const State &other) { return *this = State(other); }
    State &operator=(State &&) = default;

    void reset() {
        const std::int32_t status =
            onnxc_model_state_reset(model_)(memory_.data(), memory_.bytes(), symbols_.data(), symbols_.size());
        if (status != ONNXC_OK) {
            throw Error(status, "the state cannot be reset");
        }
    }

    void *data() const noexcept { return memory_.data(); }
    std::size_t bytes() const noexcept { return memory_.bytes(); }
    /* What runs have appended so far along a symbol. */
    std::int64_t symbol(std::int32_t symbol) const { return onnxc_state_symbol(memory_.data(), symbol); }

  private:
    const onnxc_model *model_;
    std::vector<std::int64_t> symbols_;
    detail::Memory memory_;
};

/* A model, and the scratch memory of its runs. */
class Model {
  public:
    /* Of `<name>_model()`. */
    explicit Model(const onnxc_model *model) : model_(model) {
        if (model == nullptr || model->abi_version != ONNXC_ABI_VERSION) {
            throw Error(ONNXC_NULL_POINTER, "the model was compiled for another version of the C ABI than " +
                                                std::to_string(ONNXC_ABI_VERSION));
        }
    }
    Model(const Model &other) : Model(other.model_) { options_ = other.options_; }
    Model(Model &&) = default;
    Model &operator=(Model &&) = default;
    Model &operator=(const Model &other) { return *this = Model(other); }

    const onnxc_model *description() const noexcept { return model_; }

    /* Services of all runs: a pool, which must outlive them, a seed, a flag that cancels. The allocator is this class's. */
    onnxc_options &options() noexcept { return options_; }
    void use(const Pool &pool) noexcept { pool.serve(options_); }
    /* Records runs from here on; behind the pool. */
    void use(const Trace &trace) noexcept { trace.serve(options_); }
    /* The weights of runs from here on, of a model that has them apart. */
    void use(const Weights &weights) noexcept { weights.serve(options_); }

    /* An empty state block, for these values of symbols by their names. */
    State state(std::initializer_list<std::pair<std::string_view, std::int64_t>> sizes) const {
        std::vector<std::int64_t> symbols(static_cast<std::size_t>(model_->symbol_count), 0);
        for (const auto &size : sizes) {
            bool found = false;
            for (std::int32_t at = 0; at < model_->symbol_count; at++) {
                if (size.first == onnxc_model_symbol(model_, at)) {
                    symbols[static_cast<std::size_t>(at)] = size.second;
                    found = true;
                }
            }
            if (!found) {
                throw std::out_of_range("the model has no symbol `" + std::string(size.first) + "`");
            }
        }
        return State(model_, std::move(symbols));
    }

    /* Runs the model on inputs in their order. */
    Outputs run(const std::vector<Tensor> &inputs) { return execute(inputs, nullptr); }
    Outputs run(State &state, const std::vector<Tensor> &inputs) { return execute(inputs, &state); }

  private:
    Outputs execute(const std::vector<Tensor> &inputs, State *state) {
        std::vector<onnxc_tensor> raw;
        for (const Tensor &input : inputs) {
            const auto at = static_cast<std::int32_t>(raw.size());
            if (at == model_->input_count) {
                break;
            }
            raw.push_back(input.raw(onnxc_model_input(model_, at)));
        }
        std::int64_t block = 0;
        if (state != nullptr) {
            block = static_cast<std::int64_t>(state->bytes());
            raw.push_back(onnxc_make_tensor(state->data(), state->bytes(), ONNXC_UINT8, 1, &block));
        }
        if (raw.size() != static_cast<std::size_t>(model_->input_count) ||
            inputs.size() + (state != nullptr ? 1 : 0) != raw.size()) {
            throw Error(ONNXC_BAD_COUNT, std::to_string(inputs.size() + (state != nullptr ? 1 : 0)) +
                                             " inputs given, the model has " + std::to_string(model_->input_count));
        }
        symbols_.assign(static_cast<std::size_t>(model_->symbol_count), -1);
        const std::int64_t bytes = onnxc_model_workspace_for(model_, raw.data(), raw.size(), symbols_.data());
        // Sizes that there is no workspace for are refused by the run, which says why.
        if (bytes > 0 && workspace_.bytes() < static_cast<std::size_t>(bytes)) {
            workspace_ = detail::Memory(static_cast<std::size_t>(bytes));
        } else if (workspace_.data() == nullptr) {
            workspace_ = detail::Memory(0);
        }
        Outputs outputs = prepare();
        char message[512] = "";
        onnxc_options options = options_;
        options.allocate = detail::allocate;
        options.release = detail::release;
        options.message = message;
        options.message_capacity = sizeof(message);
        const std::int32_t status =
            onnxc_model_run(model_)(raw.data(), raw.size(), outputs.tensors_.data(), outputs.tensors_.size(),
                                    workspace_.data(), workspace_.bytes(), &options);
        if (status != ONNXC_OK) {
            throw Error(status, message[0] != 0 ? message : "status " + std::to_string(status) + " of a run");
        }
        for (std::size_t at = 0; at < outputs.tensors_.size(); at++) {
            const onnxc_tensor &tensor = outputs.tensors_[at];
            if (outputs.memory_[at].data() == nullptr && tensor.data != nullptr) {
                outputs.memory_[at] = detail::Memory(tensor.data, tensor.bytes);
            }
        }
        return outputs;
    }

    /* Memory of the outputs whose sizes follow from the inputs; the others are allocated by the run. */
    Outputs prepare() const {
        Outputs outputs;
        outputs.model_ = model_;
        const auto count = static_cast<std::size_t>(model_->output_count);
        outputs.dims_.resize(count);
        outputs.memory_.resize(count);
        for (std::size_t at = 0; at < count; at++) {
            const onnxc_value_info info = onnxc_model_output(model_, static_cast<std::int32_t>(at));
            Dims &dims = outputs.dims_[at];
            bool is_known = info.dtype != ONNXC_STRING;
            for (std::int32_t axis = 0; axis < info.rank; axis++) {
                const std::int64_t size = onnxc_value_dim(&info, axis, symbols_.data());
                is_known = is_known && onnxc_value_dim_kind(&info, axis) != ONNXC_DIM_DATA;
                dims.push_back(size < 0 ? 0 : size);
            }
            onnxc_tensor tensor = onnxc_make_tensor(nullptr, 0, info.dtype, info.rank, dims.data());
            if (is_known) {
                outputs.memory_[at] = detail::Memory(detail::byte_count(info.dtype, {dims.data(), dims.size()}));
                tensor.data = outputs.memory_[at].data();
                tensor.bytes = outputs.memory_[at].bytes();
            }
            outputs.tensors_.push_back(tensor);
        }
        return outputs;
    }

    const onnxc_model *model_;
    onnxc_options options_ = ONNXC_OPTIONS_INIT;
    std::vector<std::int64_t> symbols_;
    detail::Memory workspace_;
};

} // namespace onnxc

#endif // ONNXC_HPP
