// A model that learns in the module.
import assert from "node:assert/strict";
import { load } from "./line.mjs";

const model = await load();
const step = model.entries.train_step;
const state = model.createState();
const x = Float32Array.from({ length: 16 }, (_, at) => at / 8 - 1);
const target = x.map((value) => 3 * value + 1);
const inputs = { x: { data: x, dims: [16, 1] }, target: { data: target, dims: [16, 1] } };
const losses = Array.from({ length: 200 }, () => step.run(inputs, { state }).loss.data[0]);
assert.ok(losses[0] > 1 && losses[199] < losses[0] / 100, `${losses[0]} ${losses[199]}`);
const y = model.run({ x: { data: new Float32Array([0.5]), dims: [1, 1] } }, { state }).y.data[0];
assert.ok(Math.abs(y - 2.5) < 0.2, `${y}`);
console.log("done");
