module digits

go 1.19

require onnxc v0.0.0

replace onnxc => ../../../runtime-support/go
