// From strokes to what the network takes. Its digits were bitmaps of 32 x 32, of which each square of 4 x 4 became the share that is black.

const SIZE = 8;
const CELL = 4;
const SIDE = SIZE * CELL;

// Half the width of a line in the bitmap, whatever size one draws in.
const PEN = 2.1;

function distance(x, y, [ax, ay], [bx, by]) {
    const [dx, dy] = [bx - ax, by - ay];
    const length = dx * dx + dy * dy;
    const along = length === 0 ? 0 : Math.min(1, Math.max(0, ((x - ax) * dx + (y - ay) * dy) / length));
    return Math.hypot(x - ax - along * dx, y - ay - along * dy);
}

/**
 * Grey levels from 0 to 1 of 8 x 8 squares: the strokes, lists of points [x, y], moved into the middle and enlarged until they touch an
 * edge.
 */
export function pixels(strokes) {
    const image = new Float32Array(SIZE * SIZE);
    const points = strokes.flat();
    if (points.length === 0) {
        return image;
    }
    const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const extent = Math.max(right - left, bottom - top);
    const scale = extent === 0 ? 0 : (SIDE - 2 * PEN) / extent;
    const place = ([x, y]) => [SIDE / 2 + (x - (left + right) / 2) * scale, SIDE / 2 + (y - (top + bottom) / 2) * scale];
    for (const stroke of strokes) {
        const placed = stroke.map(place);
        // A dot is a line from itself to itself.
        const ends = placed.length === 1 ? placed : placed.slice(1);
        ends.forEach((end, at) => mark(image, placed[at], end));
    }
    return image.map((bits) => count(bits) / (CELL * CELL));
}

/** Sets the bits of the squares: an element has those of its 16 points. */
function mark(image, start, end) {
    const low = (axis) => Math.max(0, Math.floor(Math.min(start[axis], end[axis]) - PEN));
    const high = (axis) => Math.min(SIDE - 1, Math.ceil(Math.max(start[axis], end[axis]) + PEN));
    for (let y = low(1); y <= high(1); y++) {
        for (let x = low(0); x <= high(0); x++) {
            if (distance(x + 0.5, y + 0.5, start, end) <= PEN) {
                const square = Math.floor(y / CELL) * SIZE + Math.floor(x / CELL);
                image[square] |= 1 << ((y % CELL) * CELL + (x % CELL));
            }
        }
    }
}

function count(bits) {
    let ones = 0;
    for (let rest = bits; rest !== 0; rest &= rest - 1) {
        ones++;
    }
    return ones;
}
