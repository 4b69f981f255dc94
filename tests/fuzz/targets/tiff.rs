#![no_main]

onnxc_fuzz::image_target!(b"II*\0", b"MM\0*", b"II+\0", b"MM\0+");
