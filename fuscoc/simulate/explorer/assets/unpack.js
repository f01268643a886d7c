// The record, as payload.py packed it: JSON, and arrays in one compressed block.
const TYPES = { f4: Float32Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array };

async function unpack() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const packed = Uint8Array.from(atob(data.block), (each) => each.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  delete data.block;
  return restore(data, buffer);
}

// Puts a typed array with its `shape` in the place of everything that stands for one.
function restore(value, buffer) {
  if (Array.isArray(value)) return value.map((each) => restore(each, buffer));
  if (value === null || typeof value !== "object") return value;
  if ("at" in value && "shape" in value) {
    const count = value.shape.reduce((a, b) => a * b, 1);
    const array = new TYPES[value.type](buffer, value.at, count);
    array.shape = value.shape;
    return array;
  }
  const fields = Object.entries(value).map(([name, each]) => [name, restore(each, buffer)]);
  return Object.fromEntries(fields);
}

// A matrix as the rows that plotly takes.
function rowsOf(array, map = Array.from) {
  const [rows, columns] = array.shape;
  return Array.from({ length: rows }, (_, row) =>
    map(array.subarray(row * columns, (row + 1) * columns)));
}
