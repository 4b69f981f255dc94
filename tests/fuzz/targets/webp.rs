#![no_main]

onnxc_fuzz::image_target!(b"RIFF");
