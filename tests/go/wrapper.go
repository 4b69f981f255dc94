// The package onnxc on models with values of all kinds: pairs, kinds and any_rank of src/sample_models.rs.
package main

// #cgo pkg-config: onnxc
// #cgo LDFLAGS: ${SRCDIR}/pairs.o ${SRCDIR}/kinds.o ${SRCDIR}/any_rank.o
// #include "any_rank.h"
// #include "kinds.h"
// #include "pairs.h"
import "C"

import (
	"errors"
	"fmt"
	"log"
	"reflect"
	"runtime"
	"unsafe"

	"onnxc"
)

func expect(what string, found, wanted any) {
	if !reflect.DeepEqual(found, wanted) {
		log.Fatalf("%s: %v, not %v", what, found, wanted)
	}
}

func load(model unsafe.Pointer) *onnxc.Model {
	made, err := onnxc.New(model)
	if err != nil {
		log.Fatal(err)
	}
	return made
}

func symbolic() {
	model := load(unsafe.Pointer(C.pairs_model()))
	expect("names", model.Outputs(), []string{"twice"})
	for _, batch := range []int64{2, 0, 5, 1} {
		x, wanted := make([]float32, 3*batch), make([]float32, 6*batch)
		for at := range x {
			x[at] = float32(at)
			wanted[at], wanted[len(x)+at] = x[at], -x[at]
		}
		if batch == 5 {
			if err := model.Threads(2); err != nil {
				log.Fatal(err)
			}
		}
		outputs, err := model.Run(onnxc.Of(x, batch, 3))
		if err != nil {
			log.Fatal(err)
		}
		expect("dims", outputs[0].Dims, []int64{2 * batch, 3})
		found := onnxc.Slice[float32](outputs[0])
		expect("elements", append([]float32{}, found...), append([]float32{}, wanted...))
		if onnxc.Slice[float64](outputs[0]) != nil {
			log.Fatal("elements of another type")
		}
		runtime.GC()
	}
	for message, inputs := range map[string][]onnxc.Tensor{
		"input 0 `x`: dimension 1 is 4, must be 3":         {onnxc.Of(make([]float32, 8), 2, 4)},
		"input 0 `x`: 32 bytes, must be 24":                {onnxc.Of(make([]float32, 8), 2, 3)},
		"input 0 `x`: the number of bytes exceeds 64 bits": {onnxc.Of([]float32{}, 1<<62, 3)},
		"0 inputs given, the model has 1":                  {},
	} {
		_, err := model.Run(inputs...)
		var failure *onnxc.Error
		if !errors.As(err, &failure) || failure.Status == 0 {
			log.Fatalf("no error but %v", err)
		}
		expect("message", failure.Message, message)
	}
	if _, err := onnxc.New(nil); err == nil {
		log.Fatal("no error of no model")
	}
}

func kinds() {
	model := load(unsafe.Pointer(C.kinds_model()))
	words := []string{"é", "", "a longer one than sixteen bytes"}
	outputs, err := model.Run(
		onnxc.Texts(words, 3), onnxc.Texts([]string{"!"}), onnxc.Texts([]string{"one two  three"}, 1),
		onnxc.Of([]float32{0, 2, 0, 15, 7}, 5), onnxc.Of([]int64{2, 0, 3}, 3))
	if err != nil {
		log.Fatal(err)
	}
	named := map[string]onnxc.Tensor{}
	for at, name := range model.Outputs() {
		named[name] = outputs[at]
	}
	expect("joined", named["joined"].Texts, []string{"é!", "!", "a longer one than sixteen bytes!"})
	expect("parts", named["parts"].Texts, []string{"one", "two", "three"})
	expect("places", onnxc.Slice[int64](named["places"]), []int64{1, 3, 4})
	expect("small", named["small"].Raw, []byte{0x20, 0xf0, 0x07})
	expect("shapes", onnxc.Slice[int64](named["pieces.shapes"]), []int64{2, 0, 3})
	expect("data", onnxc.Slice[float32](named["pieces.data"]), []float32{0, 2, 0, 15, 7})
}

// Outputs whose rank the run decides.
func ranks() {
	model := load(unsafe.Pointer(C.any_rank_model()))
	for n, wanted := range map[int64][]int64{1: {2, 3}, 2: {2, 2, 3}} {
		x := make([]int64, 6*n)
		for at := range x {
			x[at] = int64(at)
		}
		outputs, err := model.Run(onnxc.Of(x, 2, n, 3), onnxc.Of([]bool{true}))
		if err != nil {
			log.Fatal(err)
		}
		expect("dims", outputs[0].Dims, wanted)
		expect("elements", append([]int64{}, onnxc.Slice[int64](outputs[0])...), x)
		expect("rank 0", outputs[1].Dims, []int64{})
		expect("sum", onnxc.Slice[int64](outputs[1])[0], 3*n*(6*n-1))
	}
}

func main() {
	symbolic()
	kinds()
	ranks()
	fmt.Println("good")
}
