module onnxc

go 1.19
