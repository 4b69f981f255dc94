// Runs the module of the folder on the inputs that given.json lists; writes the outputs, and prints their dims.
import { readFile, writeFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const { load } = await import(pathToFileURL("model.mjs"));
const model = await load();
const ARRAYS = {
    f32: Float32Array,
    f64: Float64Array,
    f16: Uint16Array,
    bf16: Uint16Array,
    i8: Int8Array,
    i16: Int16Array,
    i32: Int32Array,
    i64: BigInt64Array,
    u16: Uint16Array,
    u32: Uint32Array,
    u64: BigUint64Array,
    c64: Float32Array,
    c128: Float64Array,
};
const given = JSON.parse(await readFile("given.json", "utf8"));
const inputs = {};
for (const [name, { dims, file }] of Object.entries(given)) {
    const { type } = model.inputs.find((port) => port.name === name);
    const bytes = await readFile(file);
    const data = new (ARRAYS[type] ?? Uint8Array)(new Uint8Array(bytes).buffer);
    inputs[name] = { data, dims };
}
// The second run finds the memory as the first one left it.
model.run(inputs);
const results = model.run(inputs);
const shapes = {};
for (const [at, { name }] of model.outputs.entries()) {
    const { data, dims } = results[name];
    await writeFile(`output${at}.bin`, new Uint8Array(data.buffer));
    shapes[name] = dims;
}
console.log(JSON.stringify(shapes));
