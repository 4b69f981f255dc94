/* onnxc.hpp on a model with its weights apart: `weights FILE OTHER` prints the greatest result, with the file moved between objects. */
#include <onnxc.hpp>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "net.h"

static int status(const char *path) {
    try {
        const onnxc::Weights weights(path, net_model());
    } catch (const onnxc::Error &error) {
        return error.status();
    }
    return ONNXC_OK;
}

int main(int, char **arguments) {
    onnxc::Model model(net_model());
    std::vector<float> image(64);
    for (std::size_t at = 0; at < image.size(); at++) {
        image[at] = static_cast<float>(at % 7) / 8;
    }
    try {
        model.run({{image, {1, 1, 8, 8}}});
        return 1;
    } catch (const onnxc::Error &error) {
        if (error.status() != ONNXC_NEEDS_WEIGHTS) {
            return 2;
        }
    }
    if (status(arguments[2]) != ONNXC_OTHER_WEIGHTS || status("/no/such/file") != ONNXC_BAD_WEIGHTS) {
        return 3;
    }
    onnxc::Weights weights(arguments[1], net_model());
    onnxc::Weights other(std::move(weights));
    weights = std::move(other);
    model.use(weights);
    const onnxc::Outputs outputs = model.run({{image, {1, 1, 8, 8}}});
    const auto results = outputs[0].as<float>();
    std::printf("%.9g\n", static_cast<double>(*std::max_element(results.begin(), results.end())));
}
