// Learns handwritten digits from nothing, as main.c does, and prints what that prints.
package main

// #cgo pkg-config: onnxc
// #cgo LDFLAGS: ${SRCDIR}/digits.o -lm
// #include "digits.h"
import "C"

import (
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"onnxc"
)

const (
	pixels  = 64
	record  = 1 + pixels/2
	classes = 10
	batch   = 32
)

type images struct {
	pixels []float32
	labels []int64
}

// A learner is the model's programs over one state.
type learner struct {
	infer, initialize, step *onnxc.Model
	state                   *onnxc.State
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func readImages(path string) images {
	var all images
	data := must(os.ReadFile(path))
	for ; len(data) >= record; data = data[record:] {
		for at := 0; at < pixels; at++ {
			all.pixels = append(all.pixels, float32(data[1+at/2]>>(at%2*4)&15)/15)
		}
		all.labels = append(all.labels, int64(data[0]))
	}
	return all
}

func makeLearner() learner {
	own := learner{
		infer:      must(onnxc.New(unsafe.Pointer(C.digits_model()))),
		initialize: must(onnxc.New(unsafe.Pointer(C.digits_train_initialize_model()))),
		step:       must(onnxc.New(unsafe.Pointer(C.digits_train_step_model()))),
	}
	own.state = must(own.infer.State(nil))
	return own
}

// train trains on a batch and gives the loss before that.
func (own learner) train(image []float32, labels []int64, rate float32) float64 {
	rows := int64(len(labels))
	outputs := must(own.step.RunOn(own.state, onnxc.Of(image, rows, 1, 8, 8), onnxc.Of(labels, rows), onnxc.Of([]float32{rate})))
	return float64(onnxc.Slice[float32](outputs[1])[0])
}

func (own learner) predict(image []float32) (best int, certainty float32) {
	probabilities := onnxc.Slice[float32](must(own.infer.RunOn(own.state, onnxc.Of(image, 1, 1, 8, 8)))[0])
	for at, probability := range probabilities {
		if probability > probabilities[best] {
			best = at
		}
	}
	return best, probabilities[best]
}

func (own learner) accuracy(all images, from int) float64 {
	right := 0
	for at := from; at < len(all.labels); at++ {
		if found, _ := own.predict(all.pixels[at*pixels : (at+1)*pixels]); int64(found) == all.labels[at] {
			right++
		}
	}
	return 100 * float64(right) / float64(len(all.labels)-from)
}

func argument(at int, otherwise int) int {
	if len(os.Args) <= at {
		return otherwise
	}
	return must(strconv.Atoi(os.Args[at]))
}

func main() {
	all := readImages(os.Args[1])
	epochs, seed := argument(2, 12), uint64(argument(3, 1))
	trained := len(all.labels) * 3 / 4
	own, random := makeLearner(), seed
	// Numbers in no order, the same on every machine.
	next := func() int {
		random = random*6364136223846793005 + 1442695040888963407
		return int(uint32(random >> 33))
	}
	fmt.Printf("%d images to train on, %d to test with; a state of %d bytes\n", trained, len(all.labels)-trained, len(own.state.Bytes()))
	own.initialize.Seed = seed
	must(own.initialize.RunOn(own.state))
	fmt.Printf("before: accuracy %.1f%%\n", own.accuracy(all, trained))
	order := make([]int, trained)
	for at := range order {
		order[at] = at
	}
	for epoch := 1; epoch <= epochs; epoch++ {
		fmt.Printf("epoch %2d of %d  [", epoch, epochs)
		for at := trained - 1; at > 0; at-- {
			with := next() % (at + 1)
			order[at], order[with] = order[with], order[at]
		}
		sum, last := 0.0, trained/batch
		for step := 0; step < last; step++ {
			var image []float32
			var labels []int64
			for _, of := range order[step*batch : (step+1)*batch] {
				image = append(image, all.pixels[of*pixels:(of+1)*pixels]...)
				labels = append(labels, all.labels[of])
			}
			sum += own.train(image, labels, 3e-3)
			if 20*(step+1)/last > 20*step/last {
				fmt.Print("#")
			}
		}
		fmt.Printf("]  loss %.4f  accuracy %.1f%%\n", sum/float64(last), own.accuracy(all, trained))
	}

	if err := os.WriteFile("digits.state", own.state.Bytes(), 0o644); err != nil {
		log.Fatal(err)
	}
	other := makeLearner()
	if err := other.state.Restore(must(os.ReadFile("digits.state"))); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("saved and restored: accuracy %.1f%%\n", other.accuracy(all, trained))
	image := all.pixels[trained*pixels : (trained+1)*pixels]
	for row := 0; row < 8; row++ {
		var line []string
		for _, pixel := range image[row*8 : row*8+8] {
			line = append(line, string(" .:-=+*#%@"[int(pixel*9)]))
		}
		fmt.Println(strings.Join(line, " "))
	}
	found, certainty := other.predict(image)
	fmt.Printf("this is a %d (%.1f%%); it is labelled %d\n", found, 100*float64(certainty), all.labels[trained])
	if int64(found) != all.labels[trained] {
		os.Exit(1)
	}
}
