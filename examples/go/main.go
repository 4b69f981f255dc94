// Classifies one image of a handwritten digit with the model that digits.h and digits.o were compiled from.
package main

// #cgo pkg-config: onnxc
// #cgo LDFLAGS: ${SRCDIR}/digits.o
// #include "digits.h"
import "C"

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"unsafe"

	"onnxc"
)

func main() {
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var sample struct {
		Label int
		Image []float32
	}
	if err := json.Unmarshal(text, &sample); err != nil {
		log.Fatal(err)
	}
	model, err := onnxc.New(unsafe.Pointer(C.digits_model()))
	if err != nil {
		log.Fatal(err)
	}
	outputs, err := model.Run(onnxc.Of(sample.Image, 1, 1, 8, 8))
	if err != nil {
		log.Fatal(err)
	}
	predicted := 0
	probabilities := onnxc.Slice[float32](outputs[0])
	for digit, probability := range probabilities {
		if probability > probabilities[predicted] {
			predicted = digit
		}
	}
	fmt.Printf("predicted %d (probability %.3f), label %d\n", predicted, probabilities[predicted], sample.Label)
	if predicted != sample.Label {
		os.Exit(1)
	}
}
