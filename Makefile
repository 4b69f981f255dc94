# make                    builds the compiler and the libraries
# make install            installs them, with headers and the packages for CMake and pkg-config
# make wheel              the Python package, into target/wheels
# make place              installs what was built before, in the folder BUILT
# make crates             packages the crates to publish, and builds each from its package
# make uninstall          removes what `make install` put there
#
# PREFIX   where to install
# DESTDIR  put before PREFIX, for packagers
# CARGO    Cargo, with flags such as `cargo --offline`
# TARGET   triple to build for, where that is not this machine's

PREFIX ?= /usr/local
CARGO ?= cargo
PYTHON ?= python3
INSTALL ?= install
STRIP ?= strip
TARGET ?=

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
BUILT ?= $(TARGET_DIR)/$(if $(TARGET),$(TARGET)/)release
TO := $(DESTDIR)$(PREFIX)
PACKAGES := $(TO)/lib/cmake/onnxc
LAYERS := ir machine tuning schedule partition passes loops ops contrib import backend object
CRATES := onnxc-proto onnxc-runtime-support onnxc-runtime-images $(addprefix onnxc-,$(LAYERS)) onnxc
PROGRAMS := onnxc onnxc.exe
LIBRARIES := $(addprefix libonnxc_runtime_,support.a images.a images.so images.dylib) \
    $(addprefix onnxc_runtime_,support.lib images.lib images.dll images.dll.lib)

all:
	$(CARGO) build --release --locked $(if $(TARGET),--target $(TARGET)) \
	    -p onnxc -p onnxc-runtime-support -p onnxc-runtime-images --features onnxc/full

install: all
	$(MAKE) place

# Of the libraries, those that this system makes: lib*.a, lib*.so or .dylib; *.lib and *.dll on Windows. The module for Go has the
# header beside it: when another version is installed, Go builds the module again only where a file in its folder has changed.
place:
	$(INSTALL) -d $(TO)/bin $(TO)/include $(TO)/lib/pkgconfig $(PACKAGES) $(TO)/share/onnxc/go $(TO)/share/onnxc/mpi
	for file in $(addprefix $(BUILT)/,$(PROGRAMS)); do \
	    test ! -f $$file || $(INSTALL) -m 755 $$file $(TO)/bin || exit 1; done
	for file in $(addprefix $(BUILT)/,$(LIBRARIES)); do \
	    test ! -f $$file || $(INSTALL) -m 644 $$file $(TO)/lib || exit 1; done
	-test -f $(TO)/bin/onnxc.exe || $(STRIP) -S $(TO)/bin/onnxc $(TO)/lib/libonnxc_runtime_*
	$(INSTALL) -m 644 runtime-support/include/onnxc.h runtime-support/cpp/onnxc.hpp runtime-support/cpp/onnxc_op.hpp $(TO)/include
	$(INSTALL) -m 644 runtime-support/cmake/onnxcConfig.cmake runtime-support/cmake/onnxcTarget.cmake $(PACKAGES)
	$(INSTALL) -m 644 runtime-support/go/go.mod runtime-support/go/onnxc.go runtime-support/include/onnxc.h $(TO)/share/onnxc/go
	$(INSTALL) -m 644 runtime-support/mpi/onnxc_mpi.c runtime-support/mpi/onnxc_mpi.h $(TO)/share/onnxc/mpi
	sed 's/@VERSION@/$(VERSION)/' runtime-support/cmake/onnxcConfigVersion.cmake.in > $(PACKAGES)/onnxcConfigVersion.cmake
	for package in onnxc onnxc-images onnxc-mpi; do \
	    sed 's/@VERSION@/$(VERSION)/' runtime-support/cmake/$$package.pc.in > $(TO)/lib/pkgconfig/$$package.pc || exit 1; done

uninstall:
	rm -f $(TO)/bin/onnxc $(TO)/bin/onnxc.exe $(TO)/include/onnxc.h $(TO)/include/onnxc.hpp $(TO)/include/onnxc_op.hpp
	rm -f $(TO)/lib/libonnxc_runtime_* $(TO)/lib/onnxc_runtime_* $(TO)/lib/pkgconfig/onnxc.pc $(TO)/lib/pkgconfig/onnxc-images.pc $(TO)/lib/pkgconfig/onnxc-mpi.pc
	rm -rf $(PACKAGES) $(TO)/share/onnxc

wheel:
	$(PYTHON) -m pip wheel --no-deps --wheel-dir $(TARGET_DIR)/wheels runtime-support/python

crates:
	$(CARGO) package --locked $(addprefix -p ,$(CRATES))

.PHONY: all install place uninstall wheel crates
