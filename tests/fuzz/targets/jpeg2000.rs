#![no_main]

onnxc_fuzz::image_target!(b"\0\0\0\x0cjP  ", &[0xff, 0x4f, 0xff, 0x51]);
