// Draws, and asks the network after every movement of the pen.
import { load } from "./digits.mjs";
import { pixels } from "./ink.mjs";

const find = (id) => document.getElementById(id);
const [paper, seen, hint, digit, facts] = ["paper", "seen", "hint", "digit", "facts"].map(find);

const bars = Array.from({ length: 10 }, (_, number) => {
    const row = document.createElement("li");
    row.innerHTML = `<span>${number}</span><span class="track"><span class="fill"></span></span><span class="share"></span>`;
    find("bars").append(row);
    return { fill: row.querySelector(".fill"), share: row.querySelector(".share") };
});

// Strokes of points from 0 to 1, so that turning a phone keeps them.
let strokes = [];
let open = null;
let model = null;
let isDue = false;

function colours() {
    const style = getComputedStyle(document.documentElement);
    return { ink: style.getPropertyValue("--ink"), paper: style.getPropertyValue("--paper") };
}

function draw() {
    const side = Math.round(paper.clientWidth * devicePixelRatio);
    if (paper.width !== side) {
        paper.width = paper.height = side;
    }
    const pen = paper.getContext("2d");
    pen.clearRect(0, 0, side, side);
    pen.strokeStyle = pen.fillStyle = colours().ink;
    pen.lineWidth = side / 14;
    pen.lineCap = pen.lineJoin = "round";
    for (const stroke of strokes) {
        pen.beginPath();
        pen.moveTo(stroke[0][0] * side, stroke[0][1] * side);
        // A dot, too.
        (stroke.length > 1 ? stroke.slice(1) : stroke).forEach(([x, y]) => pen.lineTo(x * side, y * side));
        pen.stroke();
    }
    hint.hidden = strokes.length > 0;
}

function show(image, shares) {
    const eye = seen.getContext("2d");
    const { ink, paper: ground } = colours();
    eye.fillStyle = ground;
    eye.globalAlpha = 1;
    eye.fillRect(0, 0, 8, 8);
    eye.fillStyle = ink;
    image.forEach((level, at) => {
        eye.globalAlpha = level;
        eye.fillRect(at % 8, Math.floor(at / 8), 1, 1);
    });
    bars.forEach(({ fill, share }, number) => {
        fill.style.transform = `scaleX(${shares ? shares[number] : 0})`;
        share.textContent = shares ? `${Math.round(100 * shares[number])} %` : "";
    });
    digit.value = shares ? shares.indexOf(Math.max(...shares)) : "?";
}

function update() {
    isDue = false;
    draw();
    const image = pixels(strokes);
    if (model === null || strokes.length === 0) {
        show(image, null);
        return;
    }
    const start = performance.now();
    const { probabilities } = model.run({ image });
    const time = performance.now() - start;
    show(image, probabilities.data);
    facts.textContent = `${Math.max(1, Math.round(time * 1000))} µs a run; ${loaded}`;
}

function later() {
    if (!isDue) {
        isDue = true;
        requestAnimationFrame(update);
    }
}

function pointOf(event) {
    const box = paper.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
}

paper.addEventListener("pointerdown", (event) => {
    if (open === null && event.button === 0) {
        paper.setPointerCapture(event.pointerId);
        open = event.pointerId;
        strokes.push([pointOf(event)]);
        later();
    }
});
paper.addEventListener("pointermove", (event) => {
    if (event.pointerId === open) {
        const events = event.getCoalescedEvents?.() ?? [];
        strokes.at(-1).push(...(events.length > 0 ? events : [event]).map(pointOf));
        later();
    }
});
for (const end of ["pointerup", "pointercancel"]) {
    paper.addEventListener(end, (event) => {
        open = event.pointerId === open ? null : open;
    });
}
find("clear").addEventListener("click", () => {
    strokes = [];
    later();
});
addEventListener("resize", later);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);

let loaded = "";
update();
try {
    const start = performance.now();
    model = await load();
    const time = performance.now() - start;
    const entry = performance.getEntriesByType("resource").find(({ name }) => name.endsWith("digits.wasm"));
    const size = entry?.decodedBodySize ? `${Math.round(entry.decodedBodySize / 1024)} KiB` : "the module";
    loaded = `${size} loaded in ${Math.round(time)} ms`;
    facts.textContent = loaded;
    update();
} catch (error) {
    facts.textContent = `The network could not be loaded: ${error.message}`;
}
