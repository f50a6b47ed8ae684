// Patches over the picture. On a regular grid a layer is an image of one pixel per patch that is scaled when drawn, so that
// 50,000 patches cost no more than one; elsewhere the patches in view are drawn one by one.
"use strict";

class PatchMap {
  constructor(corners, size) {
    this.corners = corners;
    this.size = size;
    this.count = corners.length / 2;
    this.left = Infinity;
    this.top = Infinity;
    let right = -Infinity;
    let bottom = -Infinity;
    for (let i = 0; i < this.count; i++) {
      this.left = Math.min(this.left, corners[2 * i]);
      this.top = Math.min(this.top, corners[2 * i + 1]);
      right = Math.max(right, corners[2 * i]);
      bottom = Math.max(bottom, corners[2 * i + 1]);
    }
    this.columns = Math.floor((right - this.left) / size) + 1;
    this.rows = Math.floor((bottom - this.top) / size) + 1;
    this.cells = new Map();
    this.regular = this.columns * this.rows < 4e6;
    for (let i = 0; i < this.count; i++) {
      const x = corners[2 * i] - this.left;
      const y = corners[2 * i + 1] - this.top;
      const cell = Math.floor(y / size) * this.columns + Math.floor(x / size);
      const there = this.cells.get(cell);
      if (there) there.push(i);
      else this.cells.set(cell, [i]);
      this.regular = this.regular && x % size === 0 && y % size === 0 && !there;
    }
  }

  // The patch at a place of the picture, or -1; a patch that does not start on the grid reaches into the next cells.
  at(x, y) {
    const column = Math.floor((x - this.left) / this.size);
    const row = Math.floor((y - this.top) / this.size);
    for (const [across, down] of [[0, 0], [1, 0], [0, 1], [1, 1]]) {
      if (column - across < 0 || column - across >= this.columns) continue;
      for (const i of this.cells.get((row - down) * this.columns + column - across) || []) {
        const inX = x - this.corners[2 * i];
        const inY = y - this.corners[2 * i + 1];
        if (inX >= 0 && inY >= 0 && inX < this.size && inY < this.size) return i;
      }
    }
    return -1;
  }

  // Patches whose centre lies in a closed line of [x, y, x, y, ...].
  inside(line) {
    const found = [];
    for (let i = 0; i < this.count; i++) {
      const x = this.corners[2 * i] + this.size / 2;
      const y = this.corners[2 * i + 1] + this.size / 2;
      let odd = false;
      for (let a = 0, b = line.length - 2; a < line.length; b = a, a += 2) {
        if (line[a + 1] > y !== line[b + 1] > y &&
            x < ((line[b] - line[a]) * (y - line[a + 1])) / (line[b + 1] - line[a + 1]) + line[a]) odd = !odd;
      }
      if (odd) found.push(i);
    }
    return found;
  }
}

// One colour per patch (0xAABBGGRR, 0 = nothing), ready to be drawn at any zoom.
class Raster {
  constructor(map, colors) {
    this.map = map;
    this.colors = colors;
    if (!map.regular) return;
    this.image = document.createElement("canvas");
    this.image.width = map.columns;
    this.image.height = map.rows;
    const pixels = new ImageData(map.columns, map.rows);
    const words = new Uint32Array(pixels.data.buffer);
    for (let i = 0; i < map.count; i++) {
      const column = (map.corners[2 * i] - map.left) / map.size;
      const row = (map.corners[2 * i + 1] - map.top) / map.size;
      words[row * map.columns + column] = colors[i];
    }
    this.image.getContext("2d").putImageData(pixels, 0, 0);
  }

  draw(context, view) {
    const { map } = this;
    if (map.regular) {
      context.imageSmoothingEnabled = false;
      context.drawImage(this.image, view.x(map.left), view.y(map.top),
        map.columns * map.size * view.scale, map.rows * map.size * view.scale);
      return;
    }
    const side = map.size * view.scale;
    for (let i = 0; i < map.count; i++) {
      if (!this.colors[i]) continue;
      const x = view.x(map.corners[2 * i]);
      const y = view.y(map.corners[2 * i + 1]);
      if (x + side < 0 || y + side < 0 || x > view.width || y > view.height) continue;
      context.fillStyle = css(this.colors[i]);
      context.fillRect(x, y, side, side);
    }
  }
}

// The border of a set: an edge is drawn where the neighbour is not a member, as a path made once. Of patches too small to
// have a border the set is filled instead.
class Outline {
  constructor(map, members, color, width) {
    this.color = color;
    this.width = width;
    this.map = map;
    this.members = members;
    this.path = new Path2D();
    const { corners, size } = map;
    const taken = map.regular ? new Set() : null;
    const cell = (i) => ((corners[2 * i + 1] - map.top) / size) * (map.columns + 2) + (corners[2 * i] - map.left) / size + 1;
    if (taken) for (let i = 0; i < map.count; i++) if (members[i]) taken.add(cell(i));
    for (let i = 0; i < map.count; i++) {
      if (!members[i]) continue;
      const x = corners[2 * i];
      const y = corners[2 * i + 1];
      const at = taken ? cell(i) : 0;
      const free = (step) => !taken || !taken.has(at + step);
      this.edge(free(-map.columns - 2), x, y, x + size, y);
      this.edge(free(map.columns + 2), x, y + size, x + size, y + size);
      this.edge(free(-1), x, y, x, y + size);
      this.edge(free(1), x + size, y, x + size, y + size);
    }
  }

  edge(wanted, x0, y0, x1, y1) {
    if (!wanted) return;
    this.path.moveTo(x0, y0);
    this.path.lineTo(x1, y1);
  }

  draw(context, view) {
    if (this.map.regular && this.map.size * view.scale < SMALLEST_BORDER) {
      this.filled = this.filled || new Raster(this.map, Uint32Array.from(this.members, (one) => (one ? word(this.color) : 0)));
      this.filled.draw(context, view);
      return;
    }
    context.save();
    context.transform(view.scale, 0, 0, view.scale, view.x(0), view.y(0));
    context.strokeStyle = this.color;
    context.lineWidth = this.width / view.scale;
    context.stroke(this.path);
    context.restore();
  }
}

const SMALLEST_BORDER = 4;
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

// The colour of a share from 0 to 1.
function heatColor(share) {
  const at = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
  const below = Math.min(Math.floor(at), STOPS.length - 2);
  const part = at - below;
  const [r, g, b] = STOPS[below].map((from, channel) => Math.round(from + part * (STOPS[below + 1][channel] - from)));
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

function css(word) {
  return `rgb(${word & 255} ${(word >> 8) & 255} ${(word >> 16) & 255})`;
}

function word(hex) {
  const rgb = parseInt(hex.slice(1), 16);
  return (0xff000000 | ((rgb & 255) << 16) | (rgb & 0xff00) | (rgb >> 16)) >>> 0;
}
