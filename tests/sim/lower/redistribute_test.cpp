#include "sim/lower/redistribute.hpp"

#include <gtest/gtest.h>

#include <random>

#include "sim/lower/lower.hpp"
#include "tests/sim/lower/elements.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::for_each_element;

/// Draws of a case.
class Random {
 public:
  explicit Random(std::uint32_t seed) : generator_(seed) {}
  std::uint32_t below(std::uint32_t count) {
    return std::uniform_int_distribution<std::uint32_t>(0, count - 1)(generator_);
  }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<std::uint32_t>(values.size()))];
  }

 private:
  std::mt19937 generator_;
};

std::vector<Range> all_of(const Shape& shape) {
  std::vector<Range> ranges;
  for (const std::int64_t size : shape) ranges.push_back({0, size});
  return ranges;
}

/// Plays the lists of all ranks on numbers: what copies and collectives mean, and nothing of how they came about.
class Player {
 public:
  Player(const Program& program, const std::vector<Role>& roles) : program_(program) {
    for (const Role& role : roles) {
      Rank& rank = ranks_.emplace_back(Rank{&role, {}, 0});
      for (const Storage& storage : role.storages)
        rank.memory.emplace_back(static_cast<std::size_t>(storage.bytes / 8), std::nan(""));
    }
  }

  [[nodiscard]] std::vector<double> values(std::size_t rank, std::uint32_t tensor) const {
    const Place place = place_of(ranks_[rank], tensor);
    return {place.from, place.from + place.count};
  }
  void set(std::size_t rank, std::uint32_t tensor, const std::vector<double>& values) {
    std::ranges::copy(values, place_of(ranks_[rank], tensor).from);
  }

  /// False where ranks wait for each other for ever.
  bool play() {
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (Rank& rank : ranks_)
        for (; rank.next < rank.role->size() && rank.role->kind[rank.next] != InstructionKind::collective;
             ++rank.next, goes_on = true)
          if (rank.role->kind[rank.next] == InstructionKind::copy) copy(rank, rank.role->at(rank.next));
      for (std::uint32_t r = 0; r < ranks_.size(); ++r) goes_on = meet(r) || goes_on;
    }
    return std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.next == rank.role->size(); });
  }

 private:
  struct Rank {
    const Role* role;
    mutable std::vector<std::vector<double>> memory;
    std::uint32_t next;
  };
  struct Place {
    double* from;
    std::size_t count;
  };
  static Place place_of(const Rank& rank, std::uint32_t tensor) {
    const Tensor& t = rank.role->tensors[tensor];
    return {rank.memory[t.storage].data() + t.offset_bytes / 8, static_cast<std::size_t>(t.spec.elements())};
  }

  void copy(const Rank& rank, const Instruction& instruction) {
    const OpInstance& op = program_.works[instruction.work].op;
    const double* x = place_of(rank, instruction.reads[0]).from;
    double* y = place_of(rank, instruction.writes[0]).from;
    if (op.kind->name == "scaled_copy") {
      std::transform(x, x + op.inputs[0].elements(), y, [&](double v) { return instruction.scale * v; });
      return;
    }
    const Shape& shape = op.inputs[0].shape;
    const auto dim = static_cast<std::size_t>(op.integer("dim"));
    std::vector<Range> piece = all_of(shape);
    if (op.kind->name == "slice") {
      piece[dim] = {op.integer("begin"), op.integer("size")};
      for_each_element(piece, shape, [&](std::size_t part, std::size_t whole) { y[part] = x[whole]; });
      return;
    }
    const bool packs = op.kind->name == "pack";
    ASSERT_TRUE(packs || op.kind->name == "unpack") << op.kind->name;
    const std::vector<std::uint32_t>& parts = packs ? instruction.writes : instruction.reads;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      double* block = place_of(rank, parts[k]).from;
      piece[dim] = {static_cast<std::int64_t>(k) * op.integer("block"), rank.role->tensors[parts[k]].spec.shape[dim]};
      for_each_element(piece, shape, [&](std::size_t part, std::size_t whole) {
        packs ? block[part] = x[whole] : y[whole] = block[part];
      });
    }
  }

  /// Block `block` of a member's operands.
  static Place block_of(const Rank& rank, const std::vector<std::uint32_t>& tensors, Moved moved, std::size_t members,
                        std::uint32_t block) {
    if (moved == Moved::array || tensors.size() > 1) return place_of(rank, tensors[moved == Moved::array ? 0 : block]);
    const Place whole = place_of(rank, tensors[0]);
    return {whole.from + block * (whole.count / members), whole.count / members};
  }

  /// Plays the collective that this rank stands at, where all its members do.
  bool meet(std::uint32_t r) {
    if (ranks_[r].next == ranks_[r].role->size()) return false;
    const Instruction mine = ranks_[r].role->at(ranks_[r].next);
    if (mine.kind != InstructionKind::collective) return false;
    const auto& lists = program_.groups[mine.peer].members;
    const auto list = std::ranges::find_if(
        lists, [&](const auto& members) { return std::ranges::find(members, r) != members.end(); });
    std::vector<Instruction> all;
    for (const std::uint32_t member : *list) {
      const Rank& rank = ranks_[member];
      if (rank.next == rank.role->size()) return false;
      all.push_back(rank.role->at(rank.next));
      if (all.back().kind != InstructionKind::collective || all.back().peer != mine.peer ||
          all.back().collective != mine.collective || all.back().root != mine.root)
        return false;
    }
    const std::size_t members = list->size();
    const auto read = [&](std::uint32_t member, std::uint32_t block) {
      const CollectiveOperands operands = operands_of(mine.collective, member == mine.root);
      const Place place = block_of(ranks_[(*list)[member]], all[member].reads, operands.reads, members, block);
      return std::vector<double>(place.from, place.from + place.count);
    };
    std::vector<std::pair<Place, std::vector<double>>> results;  // all read before any is written
    for_each_move(mine.collective, static_cast<std::uint32_t>(members), mine.root, [&](const Move& move) {
      std::vector<double> got = read(move.from == kEveryone ? 0 : move.from, move.from_block);
      for (std::uint32_t m = 1; move.from == kEveryone && m < members; ++m)
        std::ranges::transform(got, read(m, move.from_block), got.begin(), std::plus());
      const CollectiveOperands operands = operands_of(mine.collective, move.to == mine.root);
      const Place place = block_of(ranks_[(*list)[move.to]], all[move.to].writes, operands.writes, members, move.block);
      EXPECT_EQ(place.count, got.size()) << to_string(mine.collective);
      results.emplace_back(place, std::move(got));
    });
    for (const auto& [place, got] : results) std::ranges::copy(got, place.from);
    for (const std::uint32_t member : *list) ++ranks_[member].next;
    return true;
  }

  const Program& program_;
  std::vector<Rank> ranks_;
};

struct Case {
  Mesh mesh;
  bool rooted_sums = false;
  Shape shape;
  Placements from, to;

  [[nodiscard]] std::string text() const {
    std::string text = fmt::format("[{}]{} on", fmt::join(shape, ","), rooted_sums ? " rooted" : "");
    for (std::size_t a = 0; a < from.size(); ++a)
      text += fmt::format(" {} ({}): {} to {}", mesh.axes[a].size, to_string(mesh.axes[a].rest), to_string(from[a]),
                          to_string(to[a]));
    return text;
  }
};

Placement any_shard(Random& random, const Shape& shape) {
  const std::uint32_t dim = random.below(static_cast<std::uint32_t>(shape.size()));
  return shard(dim, shape[dim] % 2 == 0 ? random.one_of({1, 1, 2}) : 1);
}

Case draw(Random& random) {
  Case c;
  const std::uint32_t axes = 1 + random.below(3), dims = 1 + random.below(3);
  for (std::uint32_t a = 0; a < axes; ++a)
    c.mesh.axes.push_back({fmt::format("a{}", a), 2 + random.below(axes == 1 ? 4 : 2),
                           random.one_of({Rest::forbidden, Rest::to_last, Rest::chunks})});
  for (std::uint32_t d = 0; d < dims; ++d) c.shape.push_back(random.one_of({8, 12, 13, 24}));
  c.rooted_sums = random.below(4) == 0;
  for (const Axis& axis : c.mesh.axes) {
    switch (random.below(5)) {
      case 0:
        c.from.push_back(replicate());
        break;
      case 1:
        c.from.push_back(partial());
        break;
      case 2:
        c.from.push_back(rooted(random.below(axis.size)));
        break;
      default:
        c.from.push_back(any_shard(random, c.shape));
    }
    const bool was_rooted = c.from.back().kind == Placement::Kind::rooted,
               was_sum = c.from.back().kind == Placement::Kind::partial;
    switch (random.below(5)) {
      case 0:
        c.to.push_back(c.from.back());
        break;
      case 1:
        c.to.push_back(was_rooted ? c.from.back() : rooted(was_sum && c.rooted_sums ? 0 : random.below(axis.size)));
        break;
      case 2:
        c.to.push_back(replicate());
        break;
      default:
        c.to.push_back(any_shard(random, c.shape));
    }
  }
  return c;
}

/// Whether every rank's part of both can be cut.
bool can_be_cut(const Case& c) {
  try {
    for (std::uint32_t rank = 0; rank < c.mesh.ranks(); ++rank)
      for (const Placements* where : {&c.from, &c.to}) static_cast<void>(piece(c.shape, *where, c.mesh, rank));
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

/// What a rank has of the numbers 1, 2, … before: of sums a summand, small numbers that add up to them.
class Numbers {
 public:
  explicit Numbers(const Case& c) : case_(c), sums_(Plan::axes_of(c.from, Placement::Kind::partial)) {}

  [[nodiscard]] std::vector<double> of(std::uint32_t rank, const Placements& where, std::uint32_t sums) const {
    std::vector<double> values;
    const auto ranges = piece(case_.shape, where, case_.mesh, rank);
    if (!ranges) return values;
    for_each_element(*ranges, case_.shape, [&](std::size_t, std::size_t element) {
      values.push_back(sums == 0 ? whole(element) : summand(rank, element));
    });
    return values;
  }
  [[nodiscard]] std::vector<double> before(std::uint32_t rank) const { return of(rank, case_.from, sums_); }

 private:
  static double whole(std::size_t element) { return static_cast<double>(element + 1); }
  [[nodiscard]] double summand(std::uint32_t rank, std::size_t element) const {
    const std::vector<std::uint32_t> all = case_.mesh.members(rank, sums_);
    if (rank != all[0]) return noise(rank - all[0], element);
    double rest = whole(element);
    for (const std::uint32_t other : all)
      if (other != all[0]) rest -= noise(other - all[0], element);
    return rest;
  }
  static double noise(std::uint32_t place, std::size_t element) {
    return static_cast<double>((place * 31 + element * 17) % 23);
  }

  const Case& case_;
  std::uint32_t sums_;
};

/// The lists of all ranks, each a role of its own, and by rank the tensor before and after.
struct Moves {
  Program program;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> tensors;
};

Moves moves_of(const Case& c, bool exclusive) {
  const Model model = load_model("toy_mlp");
  Layout layout{
      .mesh = c.mesh,
      .play = std::vector<std::vector<Layout::Play>>(model.nodes.size(), std::vector<Layout::Play>(c.mesh.axes.size())),
      .rooted = c.rooted_sums};
  layout.input = layout.target = layout.rows = Placements(c.mesh.axes.size(), replicate());
  const Plan plan(model, layout);
  Moves moves{.program = {.mesh = c.mesh}};
  Tables tables(moves.program);
  const TensorSpec whole{Dtype::f64, c.shape};
  for (std::uint32_t rank = 0; rank < c.mesh.ranks(); ++rank) {
    RolePlan role{.name = fmt::format("rank{}", rank), .rank = rank, .ranks = {rank}};
    for (std::uint32_t a = 0; a < c.mesh.axes.size(); ++a) role.at.push_back(c.mesh.coordinate(rank, a));
    Draft draft{&tables.works, &tables.names};
    draft.role.name = role.name;
    draft.role.ranks = role.ranks;
    LocalValue value{.exclusive = exclusive};
    if (const auto local = plan.local(whole, c.from, role))
      value.tensor = draft.role.add_tensor("x", *local, TensorClass::input, true, {Initial::Kind::constant, 0});
    const std::uint32_t before = value.tensor;
    value = Redistribution(plan, role, tables, draft).move(value, whole, c.from, c.to, "x", tables.names.add("x"), -1);
    moves.tensors.emplace_back(before, value.tensor);
    add_waits(draft);
    add_frees(draft);
    moves.program.roles.push_back(std::move(draft).finish());
  }
  return moves;
}

/// Moves a tensor, plays all ranks' lists, and compares with what each should have.
void check(const Case& c, bool exclusive) {
  const auto [program, tensors] = moves_of(c, exclusive);
  const std::vector<Role>& roles = program.roles;
  validate(program);
  Player player(program, roles);
  const Numbers numbers(c);
  for (std::uint32_t rank = 0; rank < roles.size(); ++rank)
    if (tensors[rank].first != kNone) player.set(rank, tensors[rank].first, numbers.before(rank));
  ASSERT_TRUE(player.play());
  const std::uint32_t sums = Plan::axes_of(c.to, Placement::Kind::partial);
  for (std::uint32_t rank = 0; rank < roles.size(); ++rank) {
    const auto [before, after] = tensors[rank];
    std::vector<double> expected = numbers.of(rank, c.to, 0), found(expected.size(), 0);
    ASSERT_EQ(after == kNone, expected.empty()) << "rank " << rank;
    if (after == kNone) continue;
    for (const std::uint32_t member : c.mesh.members(rank, sums)) {
      const std::vector<double> summand = player.values(member, tensors[member].second);
      ASSERT_EQ(summand.size(), found.size()) << "rank " << rank;
      std::ranges::transform(found, summand, found.begin(), std::plus());
    }
    EXPECT_EQ(found, expected) << "rank " << rank;
    if (!exclusive && before != kNone)
      EXPECT_EQ(player.values(rank, before), numbers.before(rank)) << "rank " << rank << " changed what others read";
  }
}

TEST(Redistribution, AnyPlacementBecomesAnyOther) {
  Random random(1);
  int checked = 0;
  for (int k = 0; k < 6000 && !::testing::Test::HasFailure(); ++k) {
    const Case c = draw(random);
    if (!can_be_cut(c)) continue;
    SCOPED_TRACE(c.text());
    check(c, random.below(2) == 0);
    ++checked;
  }
  EXPECT_GT(checked, 1500);
}

// One transfer along each axis, where no axis must let go of what an outer one cuts, and sums don't go by a root.
TEST(Redistribution, AnAxisTransfersOnce) {
  Random random(2);
  for (int k = 0; k < 3000; ++k) {
    const Case c = draw(random);
    if (!can_be_cut(c) || c.rooted_sums) continue;
    const std::vector<bool> lets_go = axes_that_let_go(c.from, c.to);
    if (std::ranges::find(lets_go, true) != lets_go.end()) continue;
    std::ptrdiff_t most = 0;
    for (std::size_t a = 0; a < c.from.size(); ++a) most += c.from[a] != c.to[a];
    for (const Role& role : moves_of(c, true).program.roles)
      EXPECT_LE(std::ranges::count(role.kind, InstructionKind::collective), most) << c.text();
  }
}

}  // namespace
}  // namespace sim
