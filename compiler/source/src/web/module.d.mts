// Types of the model PLAIN.

/** Numbers that a run is given, with their dims. Without dims they follow from the length, where at most one is open. */
export interface Given<A> {
    data: A;
    dims?: ArrayLike<number>;
}

/**
 * Numbers that a run gives. 16-bit floats are their bits, a complex number is two numbers, and types of less than 8 bits
 * are packed as ONNX stores them.
 */
export interface Tensor<A, T extends string = string> {
    type: T;
    data: A;
    dims: number[];
}

/** An input or output: an open dim is its name or formula. */
export interface Port {
    readonly name: string;
    readonly type: string;
    readonly dims: readonly (number | string)[];
    /** It has a default, and may be left out. */
    readonly optional: boolean;
}

// SHAPES

/** The open sizes of a state. */
export interface StateSizes {
    SIZES;
}

export interface RunOptions {
    /** What `createState` of the same instance made, for a model with state. */
    state?: State;
    /** Of the random numbers that the model draws. */
    seed?: number | bigint;
}

/** What fails; `status` is the onnxc_status, 0 where there is none. */
export class OnnxcError extends Error {
    constructor(message: string, status?: number);
    readonly status: number;
}

/** What a model keeps between runs: of one stream, conversation or user. */
export class State {
    private constructor();
    /** Names of the tensors. */
    readonly names: string[];
    /** Empties it, or gives it the values that training begins with. */
    reset(): void;
    /** The value of a size, such as how many elements there are along the axis that grows. */
    size(name: string): number;
    /** Gives a size that grows an earlier value. */
    setSize(name: string, value: number): void;
    get(name: string): Tensor<ArrayBufferView>;
    set(name: string, tensor: ArrayBufferView | Given<ArrayBufferView>): void;
    /** The bytes of all, to be kept. */
    save(): Uint8Array;
    /** Goes back to what `save` gave, of this state or another one of the same sizes. */
    restore(bytes: Uint8Array): void;
    /** Gives its memory back. */
    free(): void;
}

export class Program<I, O> {
    readonly name: string;
    readonly inputs: readonly Port[];
    readonly outputs: readonly Port[];
    readonly metadata: Readonly<Record<string, string>>;
    /** Runs the program. Throws an OnnxcError with the message of the run. */
    run(inputs: I, OPTIONS): O;
}

/** An instance of the model, with memory of its own. */
export class Model extends Program<Inputs, Outputs> {
    private constructor();
    /** What trains the model. */
    readonly entries: {
        ENTRIES;
    };
    /** Makes a state block for runs of this instance. */
    createState(sizes: StateSizes): State;
}

/**
 * Loads the model: by default from the file beside this one; from a URL, a path of Node, bytes, a Response, or a
 * WebAssembly.Module, which several instances and threads can share.
 */
export function load(
    source?: string | URL | BufferSource | Response | WebAssembly.Module | Promise<BufferSource | Response | WebAssembly.Module>,
): Promise<Model>;

export default load;
