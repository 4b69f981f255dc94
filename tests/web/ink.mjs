// Ten digits, drawn with few points, as the page of examples/web takes them, in any place and size.
import assert from "node:assert/strict";
import { load } from "./digits.mjs";
import { pixels } from "./ink.mjs";

const arc = (x, y, rx, ry, from, to) =>
    Array.from({ length: 17 }, (_, at) => {
        const angle = ((from + ((to - from) * at) / 16) * Math.PI) / 180;
        return [x + rx * Math.cos(angle), y + ry * Math.sin(angle)];
    });
const DIGITS = [
    [arc(50, 50, 28, 45, -90, 270)],
    [[[38, 22], [52, 5], [52, 95]]],
    [[...arc(50, 28, 25, 23, -170, 30), [28, 95], [78, 95]]],
    [[...arc(48, 27, 24, 22, -160, 90), ...arc(48, 71, 27, 24, -90, 150)]],
    [[[52, 5], [22, 62], [80, 62]], [[62, 40], [58, 95]]],
    [[[75, 5], [32, 5], [30, 45], ...arc(48, 67, 27, 28, -110, 140)]],
    [[[62, 5], [38, 40], ...arc(50, 70, 24, 25, 200, -160)]],
    [[[25, 5], [75, 5], [42, 95]], [[30, 50], [72, 50]]],
    [[...arc(50, 27, 20, 22, 90, 450), ...arc(50, 72, 24, 23, -90, 270)]],
    [[...arc(48, 28, 24, 23, 0, 360), [72, 28], [66, 95]]],
];

const model = await load();
const read = (strokes) => {
    const { data } = model.run({ image: pixels(strokes) }).probabilities;
    return data.indexOf(Math.max(...data));
};
const found = DIGITS.map((strokes) => read(strokes));
assert.deepEqual(found, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
for (const strokes of DIGITS) {
    const moved = strokes.map((stroke) => stroke.map(([x, y]) => [0.3 + x / 400, 0.1 + y / 400]));
    const difference = pixels(strokes).map((level, at) => Math.abs(level - pixels(moved)[at]));
    assert.ok(Math.max(...difference) <= 2 / 16, `${difference}`);
}
// Nothing, and a dot in the middle.
assert.ok(pixels([]).every((level) => level === 0));
const dot = pixels([[[3, 4]]]);
const inside = Array.from(dot).flatMap((level, at) => (level > 0 ? [at] : []));
assert.deepEqual(inside, [27, 28, 35, 36]);
console.log("done");
