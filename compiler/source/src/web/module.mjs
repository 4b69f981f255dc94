// PLAIN: a model compiled by onnxc. `load` makes an instance of the module of WebAssembly beside this file.

// What an onnxc_dtype is: its name, the typed array of its elements, bits of an element, numbers of an element.
const TYPES = {
    1: ["f32", Float32Array, 32, 1],
    2: ["u8", Uint8Array, 8, 1],
    3: ["i8", Int8Array, 8, 1],
    4: ["u16", Uint16Array, 16, 1],
    5: ["i16", Int16Array, 16, 1],
    6: ["i32", Int32Array, 32, 1],
    7: ["i64", BigInt64Array, 64, 1],
    9: ["bool", Uint8Array, 8, 1],
    10: ["f16", Uint16Array, 16, 1],
    11: ["f64", Float64Array, 64, 1],
    12: ["u32", Uint32Array, 32, 1],
    13: ["u64", BigUint64Array, 64, 1],
    14: ["c64", Float32Array, 64, 2],
    15: ["c128", Float64Array, 128, 2],
    16: ["bf16", Uint16Array, 16, 1],
    17: ["f8e4m3fn", Uint8Array, 8, 1],
    18: ["f8e4m3fnuz", Uint8Array, 8, 1],
    19: ["f8e5m2", Uint8Array, 8, 1],
    20: ["f8e5m2fnuz", Uint8Array, 8, 1],
    21: ["u4", Uint8Array, 4, 1],
    22: ["i4", Uint8Array, 4, 1],
    23: ["f4e2m1", Uint8Array, 4, 1],
    24: ["f8e8m0", Uint8Array, 8, 1],
    25: ["u2", Uint8Array, 2, 1],
    26: ["i2", Uint8Array, 2, 1],
    27: ["f6e2m3", Uint8Array, 6, 1],
    28: ["f6e3m2", Uint8Array, 6, 1],
};

// The parts of a value that an onnxc_part is.
const STATE = 8;

// Statuses of runs that this file gives itself.
const BAD_DTYPE = 3;
const BAD_DIM = 5;
const BAD_BYTES = 6;
const OUT_OF_MEMORY = 15;
const BAD_STATE = 17;

const ABI_VERSION = ABI;
const MESSAGE_BYTES = 1024;
const TENSOR_BYTES = 20;

/** What fails; `status` is the onnxc_status, 0 where there is none. */
export class OnnxcError extends Error {
    constructor(message, status = 0) {
        super(message);
        this.name = "OnnxcError";
        this.status = status;
    }
}

/** The kind of an object, whatever realm it is from: "Float32Array", "ArrayBuffer", "Response". */
function kindOf(value) {
    return Object.prototype.toString.call(value).slice(8, -1);
}

async function compileResponse(response) {
    if (!response.ok) {
        throw new OnnxcError(`${response.url}: ${response.status} ${response.statusText}`);
    }
    const type = response.headers.get("content-type") ?? "";
    if (type.startsWith("application/wasm") && WebAssembly.compileStreaming) {
        return WebAssembly.compileStreaming(response);
    }
    return WebAssembly.compile(await response.arrayBuffer());
}

async function compile(given) {
    const source = (await given) ?? new URL("FILE", import.meta.url);
    const kind = kindOf(source);
    if (kind === "WebAssembly.Module") {
        return source;
    }
    if (kind === "ArrayBuffer" || ArrayBuffer.isView(source)) {
        return WebAssembly.compile(source);
    }
    if (kind === "Response") {
        return compileResponse(source);
    }
    const text = String(source);
    const isFile = text.startsWith("file:");
    // Not of bundlers, which may put an imitation of `process` there.
    const isNode = typeof process === "object" && kindOf(process) === "process";
    if (isNode && (isFile || !/^[a-z][a-z0-9+.-]+:/i.test(text))) {
        const { readFile } = await import(/* webpackIgnore: true */ /* @vite-ignore */ "node:fs/promises");
        return WebAssembly.compile(await readFile(isFile ? new URL(text) : text));
    }
    return compileResponse(await fetch(text));
}

/** Memory of an instance. Views of it end when it grows. */
class Memory {
    #view;

    constructor(exports) {
        this.exports = exports;
        this.#view = new DataView(exports.memory.buffer);
    }

    get buffer() {
        return this.exports.memory.buffer;
    }

    get view() {
        if (this.#view.buffer !== this.buffer) {
            this.#view = new DataView(this.buffer);
        }
        return this.#view;
    }

    bytes(at, count) {
        return new Uint8Array(this.buffer, at, count);
    }

    allocate(bytes) {
        const at = bytes < 2 ** 32 ? this.exports.allocate(bytes) >>> 0 : 0;
        if (at === 0) {
            throw new OnnxcError(`there is no memory for ${bytes} bytes`, OUT_OF_MEMORY);
        }
        return at;
    }

    int(at) {
        return this.view.getInt32(at, true);
    }

    address(at) {
        return this.view.getUint32(at, true);
    }

    long(at) {
        return Number(this.view.getBigInt64(at, true));
    }

    setInt(at, value) {
        this.view.setInt32(at, value, true);
    }

    setLong(at, value) {
        this.view.setBigInt64(at, BigInt(value), true);
    }

    /** The text that ends with a zero. */
    text(at) {
        const bytes = new Uint8Array(this.buffer, at);
        return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
    }
}

/** Memory that is kept from run to run. */
class Room {
    #memory;
    #bytes = 0;
    at = 0;

    constructor(memory) {
        this.#memory = memory;
    }

    reserve(bytes) {
        if (this.at === 0 || this.#bytes < bytes) {
            this.free();
            this.at = this.#memory.allocate(bytes);
            this.#bytes = bytes;
        }
        return this.at;
    }

    free() {
        if (this.at !== 0) {
            this.#memory.exports.release(this.at, this.#bytes);
            this.at = 0;
            this.#bytes = 0;
        }
    }
}

function product(dims) {
    return dims.reduce((product, dim) => product * dim, 1);
}

function bytesOf(port, dims) {
    return Math.ceil((product(dims) * port.bits) / 8);
}

/** The inputs, outputs or states whose records lie at an address. */
function readPorts(memory, model, count, records, parts, symbols) {
    return Array.from({ length: count }, (_, number) => {
        const record = records + 32 * number;
        const field = (index) => memory.int(record + 4 * index);
        const [type, array, bits, numbers] = TYPES[field(1)];
        const rank = field(2);
        const axes = Array.from({ length: rank }, (_, axis) => ({
            size: memory.long(model + field(3) + 8 * axis),
            text: memory.int(model + field(4) + 4 * axis),
            symbol: memory.int(model + field(5) + 4 * axis),
        }));
        return {
            name: memory.text(model + field(0)),
            type,
            array,
            bits,
            numbers,
            dtype: field(1),
            rank,
            sizes: axes.map((axis) => axis.size),
            symbols: axes.map((axis) => axis.symbol),
            dims: axes.map(({ size, text, symbol }) =>
                size >= 0 ? size : symbol >= 0 ? symbols[symbol] : memory.text(model + text),
            ),
            optional: field(6) !== 0,
            part: parts === null ? 0 : memory.int(parts + 8 * number + 4),
            room: new Room(memory),
        };
    });
}

/** What programs of others see of an input or output. */
function described({ name, type, dims, optional }) {
    return Object.freeze({ name, type, dims: Object.freeze([...dims]), optional });
}

/** The numbers of a tensor and its dims, as they are given to a run. */
function takeTensor(port, given) {
    const tensor = ArrayBuffer.isView(given) ? { data: given } : given;
    let data = tensor?.data;
    const wanted = port.array.name;
    const kind = kindOf(data);
    if (port.type === "f16" && kind === "Float16Array") {
        data = new Uint16Array(data.buffer, data.byteOffset, data.length);
    } else if (wanted === "Uint8Array" && kind === "Uint8ClampedArray") {
        data = new Uint8Array(data.buffer, data.byteOffset, data.length);
    } else if (kind !== wanted) {
        throw new OnnxcError(`"${port.name}" is ${port.type}: a ${wanted}, not ${kind}`, BAD_DTYPE);
    }
    let dims = tensor.dims;
    if (dims === undefined) {
        dims = openDims(port, data.length);
    } else if (dims.length !== port.rank || !Array.from(dims).every((dim) => Number.isSafeInteger(Number(dim)) && dim >= 0)) {
        const shown = `[${Array.from(dims).join(", ")}]`;
        throw new OnnxcError(`"${port.name}" has ${port.rank} dims, [${port.dims.join(", ")}], not ${shown}`, BAD_DIM);
    }
    dims = Array.from(dims, Number);
    if (bytesOf(port, dims) !== data.byteLength) {
        throw new OnnxcError(
            `"${port.name}" of the dims [${dims.join(", ")}] has ${bytesOf(port, dims)} bytes, not ${data.byteLength}`,
            BAD_BYTES,
        );
    }
    return { data: new Uint8Array(data.buffer, data.byteOffset, data.byteLength), dims };
}

/** The dims of a typed array alone: at most one of them is open. */
function openDims(port, length) {
    const open = port.sizes.findIndex((size) => size < 0);
    if (open < 0) {
        return port.sizes;
    }
    const known = product(port.sizes.filter((size) => size >= 0)) * port.numbers;
    const isOne = port.sizes.filter((size) => size < 0).length === 1;
    if (!isOne || port.bits < 8 || known === 0 || length % known !== 0) {
        throw new OnnxcError(
            `the length ${length} does not determine the dims [${port.dims.join(", ")}] of "${port.name}": give { data, dims }`,
            BAD_DIM,
        );
    }
    return port.sizes.map((size) => (size < 0 ? length / known : size));
}

/** What a run or a state gives back. */
function giveTensor(memory, port, at, dims) {
    const bytes = bytesOf(port, dims);
    return { type: port.type, dims, data: new port.array(memory.buffer.slice(at, at + bytes)) };
}

/** A program of a model. */
export class Program {
    #memory;
    #model;
    #symbols;
    #inputs;
    #outputs;
    #states;
    /** Dims, symbols, descriptors and the message of a run. */
    #frame;
    #workspace;

    constructor(memory, model) {
        const field = (at) => memory.int(model + at);
        if (field(0) !== ABI_VERSION) {
            throw new OnnxcError(`the module has version ${field(0)} of the ABI, this file ${ABI_VERSION}: they do not belong together`);
        }
        this.#memory = memory;
        this.#model = model;
        this.#workspace = new Room(memory);
        const strings = (array, count) =>
            Array.from({ length: count }, (_, index) => memory.text(model + memory.int(model + array + 4 * index)));
        /** Name of the program. */
        this.name = memory.text(model + field(4));
        this.#symbols = strings(field(32), field(16));
        this.#inputs = readPorts(memory, model, field(8), model + field(24), model + field(64), this.#symbols);
        this.#outputs = readPorts(memory, model, field(12), model + field(28), model + field(68), this.#symbols);
        this.#states = readPorts(memory, model, field(72), model + field(76), null, this.#symbols);
        this.#states.forEach((state, index) => {
            const record = model + field(80) + 16 * index;
            state.axis = memory.int(record + 4);
            state.sizeSymbol = memory.int(record + 8);
        });
        const axes = [...this.#inputs, ...this.#outputs].reduce((sum, port) => sum + port.rank, 0);
        const ports = this.#inputs.length + this.#outputs.length;
        const symbols = 8 * axes;
        const inputs = symbols + 8 * this.#symbols.length;
        const outputs = inputs + TENSOR_BYTES * this.#inputs.length;
        const message = inputs + TENSOR_BYTES * ports;
        const at = memory.allocate(message + MESSAGE_BYTES);
        this.#frame = { dims: at, symbols: at + symbols, inputs: at + inputs, outputs: at + outputs, message: at + message };
        /** Names, types and dims; an open dim is its name or formula. */
        this.inputs = Object.freeze(this.#inputs.filter((port) => port.part !== STATE).map(described));
        this.outputs = Object.freeze(this.#outputs.map(described));
        const pairs = strings(field(36), 2 * field(20));
        /** The metadata of the model. */
        this.metadata = Object.freeze(Object.fromEntries(pairs.flatMap((key, at) => (at % 2 === 0 ? [[key, pairs[at + 1]]] : []))));
    }

    /** Runs the program: values by the names of inputs, the results by those of outputs. */
    run(values, { state, seed = 0 } = {}) {
        const memory = this.#memory;
        const { exports } = memory;
        const frame = this.#frame;
        for (const name of Object.keys(values)) {
            if (!this.#inputs.some((port) => port.name === name && port.part !== STATE)) {
                const names = this.inputs.map((port) => `"${port.name}"`).join(", ");
                throw new OnnxcError(`no input is called "${name}"; there are ${names || "none"}`);
            }
        }
        let dimsAt = frame.dims;
        const describe = (tensors, index, port, data, bytes, dims) => {
            const at = tensors + TENSOR_BYTES * index;
            memory.setInt(at, data);
            memory.setInt(at + 4, bytes);
            memory.setInt(at + 8, port.dtype);
            memory.setInt(at + 12, port.rank);
            memory.setInt(at + 16, dimsAt);
            dims.forEach((dim, axis) => memory.setLong(dimsAt + 8 * axis, dim));
            dimsAt += 8 * port.rank;
        };
        this.#inputs.forEach((port, index) => {
            if (port.part === STATE) {
                const block = stateBlock(state, memory);
                describe(frame.inputs, index, port, block.at, block.bytes, [block.bytes]);
                return;
            }
            const given = values[port.name];
            if (given === undefined || given === null) {
                if (!port.optional) {
                    throw new OnnxcError(`there is no input "${port.name}"`);
                }
                describe(frame.inputs, index, port, 0, 0, port.sizes);
                return;
            }
            const { data, dims } = takeTensor(port, given);
            const at = port.room.reserve(data.byteLength);
            memory.bytes(at, data.byteLength).set(data);
            describe(frame.inputs, index, port, at, data.byteLength, dims);
        });
        const needed = Number(exports.workspace(this.#model, frame.inputs, frame.symbols));
        const workspace = needed < 0 ? 0 : this.#workspace.reserve(needed);
        this.#outputs.forEach((port, index) => {
            const dims = port.sizes.map((size, axis) =>
                size >= 0 || needed < 0 ? size : Number(exports.output_dim(this.#model, index, axis, frame.symbols)),
            );
            const isKnown = dims.every((dim) => dim >= 0);
            const bytes = isKnown ? bytesOf(port, dims) : 0;
            const at = isKnown ? port.room.reserve(bytes) : 0;
            describe(frame.outputs, index, port, at, bytes, dims);
        });
        memory.view.setUint8(frame.message, 0);
        const status = exports.run(
            this.#model,
            frame.inputs,
            frame.outputs,
            workspace,
            Math.max(needed, 0),
            BigInt.asUintN(64, BigInt(seed)),
            frame.message,
            MESSAGE_BYTES,
        );
        if (status !== 0) {
            throw new OnnxcError(memory.text(frame.message) || `the run ended with status ${status}`, status);
        }
        const results = {};
        this.#outputs.forEach((port, index) => {
            const tensor = frame.outputs + TENSOR_BYTES * index;
            const at = memory.address(tensor);
            const rank = memory.int(tensor + 12);
            const dims = Array.from({ length: rank }, (_, axis) => memory.long(memory.address(tensor + 16) + 8 * axis));
            results[port.name] = giveTensor(memory, port, at, dims);
            if (at !== port.room.at) {
                exports.release(at, memory.address(tensor + 4));
            }
        });
        return results;
    }

    /** Makes a state block; `sizes` are those of its open dims, by name. */
    createState(sizes = {}) {
        if (this.#states.length === 0) {
            throw new OnnxcError("the model was compiled without state");
        }
        const grown = new Set(this.#states.map((state) => state.sizeSymbol));
        const needed = new Set(this.#states.flatMap((state) => state.symbols).filter((symbol) => symbol >= 0 && !grown.has(symbol)));
        for (const name of Object.keys(sizes)) {
            if (!needed.has(this.#symbols.indexOf(name))) {
                const names = [...needed].map((symbol) => this.#symbols[symbol]).join(", ");
                throw new OnnxcError(`no size of the state is called "${name}"; there are ${names || "none"}`);
            }
        }
        const values = this.#symbols.map((name, symbol) => {
            if (!needed.has(symbol)) {
                return 0;
            }
            if (!Number.isSafeInteger(sizes[name])) {
                throw new OnnxcError(`the state needs the size "${name}"`);
            }
            return sizes[name];
        });
        return new State(this.#memory, this.#model, this.#symbols, this.#states, values);
    }
}

/** The block of a state. */
function stateBlock(state, memory) {
    const block = state instanceof State ? state.block(memory) : null;
    if (block === null) {
        throw new OnnxcError("the model has state: give a run { state } of createState of the same instance", BAD_STATE);
    }
    return block;
}

/** What a model keeps between runs: of one stream, conversation or user. */
export class State {
    #memory;
    #model;
    #symbols;
    #states;
    #values;
    #at;
    #bytes;

    constructor(memory, model, symbols, states, values) {
        this.#memory = memory;
        this.#model = model;
        this.#symbols = symbols;
        this.#states = states;
        this.#values = values;
        const bytes = this.#withSymbols((at) => Number(memory.exports.state_bytes(model, at)));
        if (bytes < 0) {
            throw new OnnxcError(`there is no state of these sizes (status ${-bytes})`, -bytes);
        }
        this.#bytes = bytes;
        this.#at = memory.allocate(bytes);
        this.reset();
    }

    #withSymbols(use) {
        const bytes = 8 * this.#symbols.length;
        const at = this.#memory.allocate(bytes);
        this.#values.forEach((value, index) => this.#memory.setLong(at + 8 * index, value));
        const result = use(at);
        this.#memory.exports.release(at, bytes);
        return result;
    }

    #block() {
        if (this.#at === 0) {
            throw new OnnxcError("the state was freed", BAD_STATE);
        }
        return this.#at;
    }

    #word(name) {
        const symbol = this.#symbols.indexOf(name);
        if (symbol < 0) {
            throw new OnnxcError(`no size is called "${name}"; there are ${this.#symbols.join(", ")}`);
        }
        return this.#block() + 8 * (1 + symbol);
    }

    #index(name) {
        const index = this.#states.findIndex((state) => state.name === name);
        if (index < 0) {
            const names = this.#states.map((state) => `"${state.name}"`).join(", ");
            throw new OnnxcError(`nothing in the state is called "${name}"; there are ${names}`);
        }
        return index;
    }

    /** Dims of the present elements. */
    #dims({ sizes, symbols, axis, sizeSymbol }) {
        const word = (symbol) => this.#memory.long(this.#block() + 8 * (1 + symbol));
        return sizes.map((size, at) => (at === axis && sizeSymbol >= 0 ? word(sizeSymbol) : size >= 0 ? size : word(symbols[at])));
    }

    /** For runs: the block where it is of the same instance. */
    block(memory) {
        return memory === this.#memory ? { at: this.#block(), bytes: this.#bytes } : null;
    }

    /** Names of the tensors. */
    get names() {
        return this.#states.map((state) => state.name);
    }

    /** Empties it, or gives it the values that training begins with. */
    reset() {
        const status = this.#withSymbols((at) => this.#memory.exports.state_reset(this.#model, this.#block(), this.#bytes, at));
        if (status !== 0) {
            throw new OnnxcError(`the state cannot be reset (status ${status})`, status);
        }
    }

    /** The value of a size, such as how many elements there are along the axis that grows. */
    size(name) {
        return this.#memory.long(this.#word(name));
    }

    /** Gives a size that grows an earlier value. */
    setSize(name, value) {
        this.#memory.setLong(this.#word(name), value);
    }

    /** A tensor. */
    get(name) {
        const index = this.#index(name);
        const memory = this.#memory;
        const { exports } = memory;
        const bytes = exports.state_move(this.#model, this.#block(), index, 0, 0) >>> 0;
        const at = memory.allocate(bytes);
        exports.state_move(this.#model, this.#block(), index, 0, at);
        const tensor = giveTensor(memory, this.#states[index], at, this.#dims(this.#states[index]));
        exports.release(at, bytes);
        return tensor;
    }

    /** Sets a tensor; the number of its elements along an axis that grows is what `setSize` says. */
    set(name, given) {
        const index = this.#index(name);
        const memory = this.#memory;
        const state = this.#states[index];
        const tensor = ArrayBuffer.isView(given) ? { data: given } : given;
        const wanted = this.#dims(state);
        const { data, dims } = takeTensor(state, { ...tensor, dims: tensor.dims ?? wanted });
        if (dims.some((dim, axis) => dim !== wanted[axis])) {
            throw new OnnxcError(`"${name}" has the dims [${wanted.join(", ")}], not [${dims.join(", ")}]`, BAD_DIM);
        }
        const at = memory.allocate(data.byteLength);
        memory.bytes(at, data.byteLength).set(data);
        memory.exports.state_move(this.#model, this.#block(), index, at, 0);
        memory.exports.release(at, data.byteLength);
    }

    /** The bytes of all, to be kept. */
    save() {
        return this.#memory.bytes(this.#block(), this.#bytes).slice();
    }

    /** Goes back to what `save` gave, of this state or another one of the same sizes. */
    restore(bytes) {
        if (bytes.length !== this.#bytes) {
            throw new OnnxcError(`the state has ${this.#bytes} bytes, not ${bytes.length}`, BAD_STATE);
        }
        this.#memory.bytes(this.#block(), this.#bytes).set(bytes);
    }

    /** Gives its memory back. */
    free() {
        if (this.#at !== 0) {
            this.#memory.exports.release(this.#at, this.#bytes);
            this.#at = 0;
        }
    }
}

/** An instance of the model, with memory of its own. */
export class Model extends Program {
    constructor(exports) {
        const memory = new Memory(exports);
        super(memory, exports.program(0) >>> 0);
        const entries = {};
        for (let number = 1; ; number++) {
            const at = exports.program(number) >>> 0;
            if (at === 0) {
                break;
            }
            const program = new Program(memory, at);
            entries[program.name.slice(this.name.length + 1)] = program;
        }
        /** What trains the model, by its name behind that of the model: `train_step`. */
        this.entries = Object.freeze(entries);
    }
}

/**
 * Loads the model: by default from the file beside this one; from a URL, a path of Node, bytes, a Response, or a
 * WebAssembly.Module, which several instances and threads can share.
 */
export async function load(source) {
    const instance = await WebAssembly.instantiate(await compile(source), {});
    return new Model(instance.exports);
}

export default load;
