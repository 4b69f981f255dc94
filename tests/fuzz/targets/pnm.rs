#![no_main]

onnxc_fuzz::image_target!(b"P1", b"P2", b"P3", b"P4", b"P5", b"P6");
