/* onnxc.hpp on models with values of all kinds: pairs, kinds and sums of src/sample_models.rs. */
#include <onnxc.hpp>

#include <cstdio>
#include <string>
#include <vector>

#include "any_rank.h"
#include "kinds.h"
#include "pairs.h"
#include "sums.h"

#define EXPECT(condition)                                                                                            \
    do {                                                                                                             \
        if (!(condition)) {                                                                                          \
            std::printf("line %d: %s\n", __LINE__, #condition);                                                      \
            return 1;                                                                                                \
        }                                                                                                            \
    } while (0)

/* The message of the error that `run` throws, and its status. */
template <class F> static std::string failure(F run) {
    try {
        run();
    } catch (const onnxc::Error &error) {
        return std::to_string(error.status()) + " " + error.what();
    }
    return "no error";
}

template <class T> static std::vector<T> copy(onnxc::Span<const T> span) { return {span.begin(), span.end()}; }

static int symbolic() {
    onnxc::Model model(pairs_model());
    for (const std::int64_t batch : {2, 0, 5, 1}) {
        std::vector<float> x, want;
        for (std::int64_t at = 0; at < 3 * batch; at++) {
            x.push_back(static_cast<float>(at));
        }
        want = x;
        for (const float value : x) {
            want.push_back(-value);
        }
        const onnxc::Outputs outputs = model.run({{x, {batch, 3}}});
        EXPECT(outputs.size() == 1);
        EXPECT(copy(outputs["twice"].dims()) == (std::vector<std::int64_t>{2 * batch, 3}));
        EXPECT(copy(outputs["twice"].as<float>()) == want);
        EXPECT(copy(outputs[0].as<float>()) == want);
        // A copy has a workspace of its own, and results outlive the next run.
        onnxc::Model other = model;
        EXPECT(copy(other.run({{x, {batch, 3}}})[0].as<float>()) == want);
        onnxc::Pool pool(2);
        other.use(pool);
        EXPECT(copy(other.run({{x, {batch, 3}}})[0].as<float>()) == want);
        EXPECT(copy(outputs[0].as<float>()) == want);
    }
    const std::vector<float> x(8);
    {
        onnxc::Watchdog watchdog;
        onnxc::Model limited = model;
        onnxc::Deadline late(watchdog, 3600 * 1000), over(watchdog, 0);
        while (!over.is_over()) {
        }
        limited.options().cancel = over.flag();
        EXPECT(failure([&] { limited.run({{std::vector<float>(6), {2, 3}}}); }).substr(0, 3) == "12 ");
        limited.options().cancel = late.flag();
        EXPECT(limited.run({{std::vector<float>(3), {1, 3}}}).size() == 1 && !late.is_over());
    }
    EXPECT(failure([&] { model.run({{x, {2, 4}}}); }) == "5 input 0 `x`: dimension 1 is 4, must be 3");
    EXPECT(failure([&] { model.run({{x, {2, 3}}}); }) == "6 input 0 `x`: 32 bytes, must be 24");
    EXPECT(failure([&] { model.run({{x, {-2, 3}}}).size(); }).substr(0, 2) == "5 ");
    EXPECT(failure([&] { model.run({}); }) == "2 0 inputs given, the model has 1");
    EXPECT(failure([&] { model.run({{std::vector<double>(6), {2, 3}}}); }).substr(0, 2) == "3 ");
    EXPECT(failure([&] { model.run({{std::vector<float>(3), {1, 3}}})[0].as<double>(); }).substr(0, 2) == "3 ");
    EXPECT(failure([&] { model.run({{onnxc::Span<const float>(), {INT64_MAX / 2, 3}}}); }) != "no error");
    try {
        model.run({{std::vector<float>(3), {1, 3}}})["none"];
        EXPECT(false);
    } catch (const std::out_of_range &error) {
        EXPECT(std::string(error.what()) == "model `pairs` has no output `none`");
    }
    return 0;
}

static int kinds() {
    onnxc::Model model(kinds_model());
    const std::vector<std::string> words{"\xc3\xa9", "", "a longer one than sixteen bytes"};
    const std::vector<float> x{0, 2, 0, 15, 7};
    const std::vector<std::int64_t> lengths{2, 0, 3};
    const std::vector<const char *> ending{"!"}, line{"one two  three"};
    const onnxc::Outputs outputs =
        model.run({{words, {3}}, {ending, {}}, {line, {1}}, {x, {5}}, {lengths, {3}}});
    using Texts = std::vector<std::string_view>;
    EXPECT(outputs["joined"].texts() == (Texts{"\xc3\xa9!", "!", "a longer one than sixteen bytes!"}));
    EXPECT(outputs["parts"].texts() == (Texts{"one", "two", "three"}));
    EXPECT(copy(outputs["places"].as<std::int64_t>()) == (std::vector<std::int64_t>{1, 3, 4}));
    EXPECT(copy(outputs["small"].bytes()) == (std::vector<unsigned char>{0x20, 0xf0, 0x07}));
    const std::vector<onnxc::View> pieces = outputs.sequence("pieces");
    EXPECT(pieces.size() == 3);
    EXPECT(copy(pieces[0].as<float>()) == (std::vector<float>{0, 2}));
    EXPECT(pieces[1].as<float>().empty());
    EXPECT(copy(pieces[2].as<float>()) == (std::vector<float>{0, 15, 7}));
    const std::vector<std::int64_t> wrong{2, 0, 4};
    const std::string message =
        failure([&] { model.run({{words, {3}}, {ending, {}}, {line, {1}}, {x, {5}}, {wrong, {3}}}); });
    EXPECT(message.find("SplitToSequence") != std::string::npos);
    EXPECT(failure([&] { outputs["places"].texts(); }).substr(0, 2) == "3 ");
    return 0;
}

static int state() {
    onnxc::Model model(sums_model());
    onnxc::State state = model.state({{"past.capacity", 5}});
    const std::vector<float> rows{1, 2, 3, 10, 20, 30}, more{100, 0, 0}, less{0, 0, 7}, four(12);
    using Numbers = std::vector<float>;
    EXPECT(copy(model.run(state, {{rows, {2, 3}}})["y"].as<float>()) == (Numbers{11, 22, 33}));
    onnxc::State other = state;
    EXPECT(copy(model.run(state, {{more, {1, 3}}})["y"].as<float>()) == (Numbers{111, 22, 33}));
    EXPECT(copy(model.run(other, {{less, {1, 3}}})["y"].as<float>()) == (Numbers{11, 22, 40}));
    EXPECT(failure([&] { model.run(state, {{four, {4, 3}}}); }) ==
           "18 the state is full: `past` would become 7, and there is room for 5");
    state = other;
    EXPECT(copy(model.run(state, {{Numbers{}, {0, 3}}})["y"].as<float>()) == (Numbers{11, 22, 40}));
    state.reset();
    EXPECT(copy(model.run(state, {{less, {1, 3}}})["y"].as<float>()) == (Numbers{0, 0, 7}));
    EXPECT(failure([&] { model.run({{less, {1, 3}}}); }) == "2 1 inputs given, the model has 2");
    EXPECT(failure([&] { model.state({{"past.capacity", INT64_MAX / 2}}); }) != "no error");
    return 0;
}

/* onnxc_value_dim reads the texts of dims. */
static int dims() {
    const onnxc_model *model = pairs_model();
    const onnxc_value_info twice = onnxc_model_output(model, 0);
    std::int64_t batch = 21;
    EXPECT(onnxc_value_dim(&twice, 0, &batch) == 42);
    EXPECT(onnxc_value_dim(&twice, 1, &batch) == 3);
    batch = INT64_MAX / 2 + 1;
    EXPECT(onnxc_value_dim(&twice, 0, &batch) == -1);
    batch = -1;
    EXPECT(onnxc_value_dim(&twice, 0, &batch) == -1);
    const char *const texts[] = {"floordiv(batch + 1, 3)*2", "mod(batch, 4)", "min(batch, max(3, 5)) + 1", "-batch + 9",
                                 "batch - 7",                "floordiv(1 - batch, 4)", "batch*batch*2 - 1",
                                 "broadcast(1, batch)",      "broadcast(batch, batch - 7)"};
    const std::int64_t values[] = {4, 3, 6, 2, 0, -2, 97, 7, 0};
    batch = 7;
    for (int at = 0; at < 9; at++) {
        onnxc_dim_reader reader = {model, &batch, texts[at], 0};
        const std::int64_t value = onnxc_dim_sum(&reader);
        EXPECT(!reader.failed && *reader.at == 0 && value == values[at]);
    }
    const char *const wrong[] = {"x", "floordiv(batch, 0)", "min(batch)", "99999999999999999999", "batch*4611686018427387904"};
    for (const char *text : wrong) {
        onnxc_dim_reader reader = {model, &batch, text, 0};
        onnxc_dim_sum(&reader);
        EXPECT(reader.failed);
    }
    return 0;
}

/* Outputs whose rank the run decides. */
static int ranks() {
    onnxc::Model model(any_rank_model());
    using Sizes = std::vector<std::int64_t>;
    for (const std::int64_t n : {1, 2}) {
        std::vector<std::int64_t> x(static_cast<std::size_t>(6 * n), 1);
        for (const bool whole : {true, false}) {
            const onnxc::Outputs outputs = model.run({{x, {2, n, 3}}, onnxc::Tensor(whole)});
            EXPECT(copy(outputs["y"].dims()) == (n == 1 ? Sizes{2, 3} : Sizes{2, n, 3}));
            EXPECT(copy(outputs["y"].as<std::int64_t>()) == x);
            EXPECT(copy(outputs["z"].dims()) == (whole ? Sizes{} : Sizes{3}));
            EXPECT(outputs["z"].as<std::int64_t>()[0] == (whole ? 6 * n : 2 * n));
        }
    }
    return 0;
}

int main() {
    if (symbolic() != 0 || kinds() != 0 || ranks() != 0 || state() != 0 || dims() != 0) {
        return 1;
    }
    std::puts("good");
    return 0;
}
