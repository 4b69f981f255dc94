// What is wrong is an exception with a message, and the next run works.
import assert from "node:assert/strict";
import { OnnxcError, load } from "./errors.mjs";

const model = await load();
const table = new Float32Array([1, 2, 3, 4]);
const right = { table, index: new BigInt64Array([3n, -4n]), same: new BigInt64Array([1n, 1n]) };
const works = () => assert.deepEqual(Array.from(model.run(right).taken.data), [5, 2]);
const fails = (inputs, status, ...texts) => {
    assert.throws(() => model.run(inputs), (error) => {
        assert.ok(error instanceof OnnxcError && error instanceof Error, `${error}`);
        for (const text of texts) {
            assert.ok(error.message.includes(text), `${error.message} has no ${text}`);
        }
        assert.equal(error.status, status, error.message);
        return true;
    });
    works();
};
works();
// Of the run: an index that is out of range, with the node and the value; sizes that disagree.
fails({ ...right, index: new BigInt64Array([3n, 4n]) }, 11, "4", "gather node");
fails({ ...right, same: new BigInt64Array([1n]) }, 5, "same", "index");
// Of what is given.
fails({ ...right, table: new Float64Array(4) }, 3, '"table"', "Float32Array", "Float64Array");
fails({ ...right, table: [1, 2, 3, 4] }, 3, '"table"', "Float32Array");
fails({ ...right, table: new Float32Array(5) }, 6, '"table"', "16 bytes", "20");
fails({ ...right, table: { data: table, dims: [2, 2] } }, 5, '"table"', "[4]", "[2, 2]");
fails({ ...right, table: { data: table, dims: [-4] } }, 5, '"table"', "[-4]");
fails({ ...right, table: { data: table, dims: [2] } }, 6, "8 bytes", "16");
fails({ table, index: right.index }, 0, 'no input "same"');
fails({ ...right, tabel: table }, 0, '"tabel"', '"table", "index", "same"');
await assert.rejects(load(new Uint8Array([0, 97, 115, 109])), WebAssembly.CompileError);
await assert.rejects(load("no such file.wasm"), /ENOENT/);
console.log("done");
