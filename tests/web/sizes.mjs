// Open sizes, sizes and ranks that only the data decides, packed types, sequences, and memory that grows.
import assert from "node:assert/strict";
import { load } from "./symbolic.mjs";
import { load as loadData } from "./data.mjs";
import { load as loadRank } from "./rank.mjs";

const plain = ({ data, dims }) => [Array.from(data), dims];
const model = await load();
assert.deepEqual(model.inputs[0].dims, ["batch", 3]);
assert.equal(model.outputs[0].name, "twice");
for (const rows of [1, 0, 5, 2]) {
    const x = Float32Array.from({ length: 3 * rows }, (_, at) => at + 1);
    const wanted = [[...x, ...x.map((value) => -value)], [2 * rows, 3]];
    assert.deepEqual(plain(model.run({ x: { data: x, dims: [rows, 3] } }).twice), wanted);
    // The length decides the one size that is open.
    assert.deepEqual(plain(model.run({ x }).twice), wanted);
}
// More than the memory that a module begins with; it is used again.
const large = new Float32Array(3 << 20).fill(7);
for (let time = 0; time < 8; time++) {
    const { data, dims } = model.run({ x: large }).twice;
    assert.deepEqual([data.length, dims, data[0], data.at(-1)], [6 << 20, [2 << 20, 3], 7, -7]);
}

const data = await loadData();
for (const x of [[0, 3, 0, 5], [0, 0], [1, 1, 1, 1, 1], []]) {
    const places = x.flatMap((value, at) => (value === 0 ? [] : [BigInt(at)]));
    const { places: found, small, "pieces.shapes": shapes, "pieces.data": pieces } = data.run({
        x: new Float32Array(x),
        lengths: new BigInt64Array([1n, BigInt(x.length - 1)].slice(0, x.length === 0 ? 0 : 2)),
    });
    assert.deepEqual(plain(found), [places, [1, places.length]]);
    const packed = Array.from({ length: Math.ceil(x.length / 2) }, (_, at) => x[2 * at] | ((x[2 * at + 1] ?? 0) << 4));
    assert.deepEqual(plain(small), [packed, [x.length]]);
    assert.equal(small.type, "u4");
    assert.deepEqual(Array.from(pieces.data), x);
    assert.equal(shapes.dims[0], x.length === 0 ? 0 : 2);
}

const rank = await loadRank();
const counted = (size) => BigInt64Array.from({ length: 6 * size }, (_, at) => BigInt(at));
for (const [size, whole] of [[1, 1], [2, 0], [1, 0], [3, 1]]) {
    const x = { data: counted(size), dims: [2, size, 3] };
    const { y, z } = rank.run({ x, whole: { data: new Uint8Array([whole]), dims: [] } });
    assert.deepEqual(plain(y), [Array.from(x.data), size === 1 ? [2, 3] : [2, size, 3]]);
    const sums = [0n, 0n, 0n];
    x.data.forEach((value, at) => (sums[at % 3] += value));
    assert.deepEqual(plain(z), whole ? [[sums[0] + sums[1] + sums[2]], []] : [sums, [3]]);
}
console.log("done");
