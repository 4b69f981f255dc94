// Every type of numbers, in and out; names that no identifier is.
import assert from "node:assert/strict";
import { load } from "./types.mjs";

const model = await load();
const given = {
    f32: new Float32Array([1.5, -0, Infinity]),
    f64: new Float64Array([1.5, -0, 1e300]),
    f16: new Uint16Array([0x3e00, 0x8000, 0x7bff]),
    bf16: new Uint16Array([0x3fc0, 0x8000, 0xff80]),
    i8: new Int8Array([1, -64, 100]),
    u8: new Uint8Array([1, 2, 200]),
    i16: new Int16Array([1, -2, 20000]),
    u16: new Uint16Array([1, 2, 40000]),
    i32: new Int32Array([1, -2, 2 ** 30]),
    u32: new Uint32Array([1, 2, 2 ** 31]),
    i64: new BigInt64Array([1n, -(2n ** 62n), 2n ** 53n + 1n]),
    u64: new BigUint64Array([1n, 2n, 2n ** 63n + 5n]),
    bool: new Uint8Array([0, 1, 1]),
    'a "name" of \\ more': new Float32Array([1, 2, 3]),
};
const wanted = {
    f32: [3, -0, Infinity],
    f64: [3, -0, 2e300],
    f16: [0x4200, 0x8000, 0x7c00],
    bf16: [0x4040, 0x8000, 0xff80],
    i8: [2, -128, -56],
    u8: [2, 4, 144],
    i16: [2, -4, -25536],
    u16: [2, 4, 14464],
    i32: [2, -4, -(2 ** 31)],
    u32: [2, 4, 0],
    i64: [2n, -(2n ** 63n), 2n ** 54n + 2n],
    u64: [2n, 4n, 10n],
    bool: [1, 0, 0],
    'a "name" of \\ more': [2, 4, 6],
};
const results = model.run(given);
assert.deepEqual(Object.keys(results).sort(), Object.keys(wanted).map((name) => `2 ${name}`).sort());
for (const [name, numbers] of Object.entries(wanted)) {
    const { data, dims, type } = results[`2 ${name}`];
    assert.equal(data.constructor, given[name].constructor, name);
    assert.deepEqual(Array.from(data), numbers, name);
    assert.deepEqual(dims, [3], name);
    assert.equal(type, name.startsWith("a ") ? "f32" : name);
    assert.deepEqual(model.inputs.find((port) => port.name === name), { name, type, dims: [3], optional: false });
}
// Results are copies, and views of other memory and pixels of a canvas are taken as they are.
const kept = results["2 f32"].data;
const room = new Float32Array(8);
room.set([4, 5, 6], 3);
const more = model.run({ ...given, f32: room.subarray(3, 6), u8: new Uint8ClampedArray([3, 4, 5]) });
assert.deepEqual(Array.from(more["2 f32"].data), [8, 10, 12]);
assert.deepEqual(Array.from(more["2 u8"].data), [6, 8, 10]);
assert.deepEqual(Array.from(kept), [3, -0, Infinity]);
console.log("done");
