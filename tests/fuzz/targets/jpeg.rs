#![no_main]

onnxc_fuzz::image_target!(&[0xff, 0xd8, 0xff]);
