// Several instances of one module, in this thread and another one; every way to load it.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";
import { load } from "./digits.mjs";

const sample = JSON.parse(await readFile(new URL("./sample.json", import.meta.url), "utf8"));
const image = new Float32Array(sample.image);
const predict = (model) => {
    const { data, dims } = model.run({ image }).probabilities;
    assert.deepEqual(dims, [1, 10]);
    assert.equal(data.indexOf(Math.max(...data)), sample.label);
    return Array.from(data);
};

if (!isMainThread) {
    parentPort.postMessage(predict(await load(workerData)));
} else {
    const url = new URL("./digits.wasm", import.meta.url);
    const bytes = await readFile(url);
    const module = await WebAssembly.compile(bytes);
    const wanted = predict(await load());
    assert.ok(Math.abs(wanted[sample.label] - 0.9995) < 1e-3, `${wanted}`);
    const [first, second] = await Promise.all([load(module), load(module)]);
    const other = new Float32Array(64).fill(0.5);
    const before = Array.from(second.run({ image: other }).probabilities.data);
    assert.deepEqual([predict(first), predict(first)], [wanted, wanted]);
    assert.deepEqual(Array.from(second.run({ image: other }).probabilities.data), before);
    const worker = new Worker(new URL(import.meta.url), { workerData: module });
    const answer = await new Promise((resolve, reject) => worker.on("message", resolve).on("error", reject));
    assert.deepEqual(answer, wanted);

    const server = createServer((request, response) => {
        const type = { "/typed.wasm": "application/wasm", "/plain.wasm": "text/plain" }[request.url];
        response.writeHead(type ? 200 : 404, { "content-type": type ?? "text/plain" }).end(type ? bytes : "");
    });
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    const site = `http://127.0.0.1:${server.address().port}`;
    const sources = [url, url.pathname, bytes, bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length)];
    sources.push(`${site}/typed.wasm`, new URL(`${site}/plain.wasm`), fetch(`${site}/typed.wasm`));
    for (const source of sources) {
        assert.deepEqual(predict(await load(source)), wanted, `${source}`);
    }
    await assert.rejects(load(`${site}/none.wasm`), /404/);
    server.close();
    server.closeAllConnections();
    console.log("done");
}
