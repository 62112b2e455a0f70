#include "sim/mesh/placement.hpp"

#include <algorithm>
#include <map>

#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;

std::vector<std::int64_t> sizes(std::int64_t size, std::int64_t unit, const Axis& axis) {
  std::vector<std::int64_t> found;
  std::int64_t next = 0;
  for (std::uint32_t at = 0; at < axis.size; ++at) {
    const Range range = part(size, unit, axis, at);
    EXPECT_EQ(range.begin, next);
    next += range.size;
    found.push_back(range.size);
  }
  EXPECT_EQ(next, size);
  return found;
}

TEST(Part, TheRestIsTheAxiss) {
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(sizes(16, 1, {"dp", 4}), Sizes({4, 4, 4, 4}));
  EXPECT_EQ(sizes(16, 1, {"h", 3, Rest::to_last}), Sizes({5, 5, 6}));
  EXPECT_EQ(sizes(8, 1, {"h", 3, Rest::to_last}), Sizes({2, 2, 4}));  // HyPar's channels
  EXPECT_EQ(sizes(8, 1, {"dp", 3, Rest::chunks}), Sizes({3, 3, 2}));  // torch.chunk's
  EXPECT_EQ(sizes(8 * 49, 49, {"h", 3, Rest::to_last}), Sizes({2 * 49, 2 * 49, 4 * 49}));
  for (const Rest rest : {Rest::forbidden, Rest::to_last, Rest::chunks})
    EXPECT_EQ(sizes(7, 1, {"x", 1, rest}), Sizes({7}));
}

TEST(Part, NothingIsEmptyOrTorn) {
  EXPECT_EQ(message_of([] { part(10, 1, {"tp", 3}, 0); }), "tp=3 must divide 10");
  EXPECT_EQ(message_of([] { part(10, 4, {"tp", 2}, 0); }), "10 elements can't be cut in units of 4");
  EXPECT_EQ(message_of([] { part(2, 1, {"h", 3, Rest::to_last}, 0); }), "h=3 parts of 2 would leave one empty");
  EXPECT_EQ(message_of([] { part(5, 1, {"dp", 4, Rest::chunks}, 0); }), "dp=4 parts of 5 would leave one empty");
}

TEST(Placement, IsReadFromItsText) {
  for (const Placement& placement :
       {replicate(), shard(0), shard(3, 64), partial(), partial(Reduction::mean), partial(Reduction::max), rooted(0),
        rooted(17), rooted(kLast), own(), placement_from("S0+"), placement_from("S1+")})
    EXPECT_EQ(placement_from(to_string(placement)), placement) << to_string(placement);
  for (const char* text : {"", "S", "Sx", "S1/", "S1/0", "S99", "S-1", "P.sum", "P.min", "@", "@-1", "r", "R ", "own1",
                           "S0/2+", "R+", "S+"})
    EXPECT_THROW(placement_from(text), ConfigError) << text;
  EXPECT_EQ(message_of([] { placement_from("Q"); }),
            "'Q' is no placement; known: R, S0, S1/64, S0+, P, P.mean, P.max, @0, @last, own");
}

// Every element of a tensor is somebody's, and as often as the placements say.
TEST(Piece, TogetherTheyAreTheWhole) {
  const Mesh mesh{{{"a", 2}, {"b", 3, Rest::to_last}}};
  const Shape shape{8, 7};
  const std::map<std::vector<std::string>, std::size_t> copies{
      {{"R", "R"}, 6},      {{"S0", "R"}, 3},     {{"S0", "S1"}, 1}, {{"S0", "S0"}, 1}, {{"@1", "S1"}, 1},
      {{"@0", "@last"}, 1}, {{"S0/4", "own"}, 3}, {{"P", "S1"}, 2},  {{"S0+", "S0"}, 2}};
  for (const auto& [texts, expected] : copies) {
    std::vector<Placement> placements;
    for (const std::string& text : texts) placements.push_back(placement_from(text));
    std::vector<std::size_t> owners(static_cast<std::size_t>(elements(shape)));
    for (std::uint32_t rank = 0; rank < mesh.ranks(); ++rank) {
      const auto ranges = piece(shape, placements, mesh, rank);
      if (!ranges) continue;
      const Range &rows = ranges->at(0), &columns = ranges->at(1);
      for (std::int64_t row = rows.begin; row < rows.begin + rows.size; ++row)
        for (std::int64_t column = columns.begin; column < columns.begin + columns.size; ++column)
          ++owners.at(static_cast<std::size_t>(row * shape[1] + column));
    }
    EXPECT_EQ(std::ranges::count(owners, expected), elements(shape)) << texts[0] << ' ' << texts[1];
  }
}

TEST(Piece, AxesCutOneDimensionFromTheOutermost) {
  const Mesh mesh{{{"a", 2}, {"b", 2}}};
  const std::vector<Placement> twice{shard(0), shard(0)};
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(piece({8}, twice, mesh, rank), std::vector<Range>({{2 * rank, 2}}));
}

TEST(Rows, EachTakesTheRoomOfTheFirstAndTheLastMayHaveNone) {
  const Axis axis{"dp", 4};
  std::vector<Range> rows;
  for (std::uint32_t at = 0; at < 4; ++at) rows.push_back(rows_of(5, axis, at));
  EXPECT_EQ(rows, (std::vector<Range>{{0, 2}, {2, 2}, {4, 1}, {5, 0}}));
  EXPECT_EQ(padded_part(5, axis), 2);
}

}  // namespace
}  // namespace sim
