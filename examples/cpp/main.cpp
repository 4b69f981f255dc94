// Classifies one image of a handwritten digit with the model that CMake had compiled.
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iostream>

#include <onnxc.hpp>

#include "digits.h"
#include "sample.h"

int main() {
    try {
        onnxc::Model model(digits_model());
        const onnxc::Outputs outputs = model.run({{onnxc::Span<const float>(sample_image, 64), {1, 1, 8, 8}}});
        const onnxc::Span<const float> probabilities = outputs["probabilities"].as<float>();
        const auto best = std::max_element(probabilities.begin(), probabilities.end());
        const auto predicted = best - probabilities.begin();
        std::cout.precision(3);
        std::cout << std::fixed << "predicted " << predicted << " (probability " << *best << "), label " << sample_label << '\n';
        return predicted == sample_label ? EXIT_SUCCESS : EXIT_FAILURE;
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
        return EXIT_FAILURE;
    }
}
