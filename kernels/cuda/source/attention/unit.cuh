// A unit, one (sequence, KV head), and how its K or V is read. Positions before `past` lie in the cache, or are
// rows of this step too, from `shared_row` on; those from there on are its own fresh rows, on every device alike.
// A cache may be a ring, which holds the last positions.
#pragma once

// `Unit` in src/attention.rs.
struct Unit {
    u32 row0;
    u32 rows;
    u32 past;
    u32 kv_head;
    u64 cache_offset;
    u64 scores_offset;
    u32 shared_row;
    // Places in the cache, position `p` at place `p % cache_positions`; 0: at place `p`.
    u32 cache_positions;

    DEVICE bool shares() const { return shared_row != ~0u; }
    // Rows that belong into the cache, were there places for all.
    DEVICE u32 all_appended() const { return shares() ? past + rows : rows; }
    // Those that it has places for: the last ones.
    DEVICE u32 appended() const {
        return cache_positions == 0 ? all_appended() : smaller(all_appended(), cache_positions);
    }
    // The row of one of them, and its place.
    DEVICE u32 appended_row(u32 index) const {
        index += all_appended() - appended();
        if (!shares()) return row0 + index;
        return index < past ? shared_row + index : row0 + index - past;
    }
    DEVICE u32 appended_place(u32 index) const {
        index += all_appended() - appended();
        const u32 position = shares() ? index : past + index;
        return cache_positions == 0 ? position : position % cache_positions;
    }
};

struct Shape {
    u32 heads;
    u32 kv_heads;
    u32 head_dim;
    // Positions that a row sees at most, its own the last of them.
    u32 window;

    DEVICE u32 group() const { return heads / kv_heads; }
    // The first position that a row sees whose own is the last of `limit`.
    DEVICE u32 first_seen(u32 limit) const { return limit > window ? limit - window : 0; }
    // Elements before a query's head in `[rows, heads * head_dim]`; `head` counts within the group.
    DEVICE u64 head_offset(const Unit& unit, u32 row, u32 head) const {
        const u64 before = (u64)(unit.row0 + row) * heads + unit.kv_head * group() + head;
        return before * head_dim;
    }
};

// Positions that are taken together, from position 0 on; of the first ones of a window those in it.
static constexpr u32 SPLIT = 256;

// The sink of a query head of the group, or what is below all scores.
DEVICE float sink_of(const float* sinks, const Unit& unit, const Shape& shape, u32 head) {
    return sinks ? sinks[unit.kv_head * shape.group() + head] : minus_infinity();
}

// Where the positions before the fresh ones lie.
struct Places {
    // The first position of the ring's last round, and its places; 0 and 0 for what is no ring.
    u32 round;
    u32 count;

    DEVICE explicit Places(const Unit& unit) : round(0), count(0) {
        if (unit.shares() || unit.cache_positions == 0) return;
        count = unit.cache_positions;
        round = unit.past / count * count;
    }

    DEVICE u32 of(u32 position) const {
        return position >= round ? position - round : position + count - round;
    }

    // Whether the places of `length` positions follow each other.
    DEVICE bool in_a_row(u32 first, u32 length) const {
        return of(first + length - 1) - of(first) == length - 1;
    }
};

// K or V of a unit as elements.
template <class T> struct PlainRows {
    // The first place, and the first fresh position.
    const T* before;
    const T* fresh;
    Places places;
    u32 past;
    u32 before_stride;
    u32 fresh_stride;
    u32 head_dim;

    DEVICE PlainRows(const void* fresh_rows, const void* cache, const Unit& unit, const Shape& shape)
        : places(unit), past(unit.past), fresh_stride(shape.kv_heads * shape.head_dim),
          head_dim(shape.head_dim) {
        const T* rows = static_cast<const T*>(fresh_rows) + (u64)unit.kv_head * head_dim;
        fresh = rows + (u64)unit.row0 * fresh_stride;
        before = unit.shares() ? rows + (u64)unit.shared_row * fresh_stride
                               : static_cast<const T*>(cache) + unit.cache_offset;
        before_stride = unit.shares() ? fresh_stride : head_dim;
    }

    DEVICE const T* row(u32 position) const {
        return position < past ? before + (u64)places.of(position) * before_stride
                               : fresh + (u64)(position - past) * fresh_stride;
    }

    // Whether positions lie `stride(first)` elements apart.
    DEVICE bool in_a_row(u32 first, u32 length) const {
        return first >= past || (first + length <= past && places.in_a_row(first, length));
    }
    DEVICE u32 stride(u32 first) const { return first < past ? before_stride : fresh_stride; }

    // Elements `at` to `at + 7`, zeros behind the head.
    DEVICE void eight(u32 position, u32 at, float* to) const {
        load8(row(position) + at, head_dim - at, head_dim % 8 == 0, to);
    }
};

// K or V of a unit as 4-bit records.
struct FourRows {
    const u8* before;
    const u8* fresh;
    Places places;
    u32 past;
    u32 before_stride;
    u32 fresh_stride;
    u32 head_dim;

    DEVICE FourRows(const void* fresh_rows, const void* cache, const Unit& unit, const Shape& shape)
        : places(unit), past(unit.past), head_dim(shape.head_dim) {
        const u32 bytes = kv_record_bytes(head_dim);
        fresh_stride = shape.kv_heads * bytes;
        const u8* rows = static_cast<const u8*>(fresh_rows) + (u64)unit.kv_head * bytes;
        fresh = rows + (u64)unit.row0 * fresh_stride;
        before = unit.shares() ? rows + (u64)unit.shared_row * fresh_stride
                               : static_cast<const u8*>(cache) + unit.cache_offset / head_dim * bytes;
        before_stride = unit.shares() ? fresh_stride : bytes;
    }

    DEVICE const u8* record(u32 position) const {
        return position < past ? before + (u64)places.of(position) * before_stride
                               : fresh + (u64)(position - past) * fresh_stride;
    }

    // Whether positions lie `stride(first)` bytes apart.
    DEVICE bool in_a_row(u32 first, u32 length) const {
        return first >= past || (first + length <= past && places.in_a_row(first, length));
    }
    DEVICE u32 stride(u32 first) const { return first < past ? before_stride : fresh_stride; }

    DEVICE void eight(u32 position, u32 at, float* to) const {
        decode_kv8(record(position), head_dim, at, to);
    }
};
