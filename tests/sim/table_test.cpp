#include "sim/table.hpp"

#include <array>
#include <set>

#include "sim/cost/collective/collective.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/model/op/op.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;

struct Fruit {
  std::string_view name;
  int weight_g = 0;
};
constexpr std::array<Fruit, 3> kFruit{{{"apple", 150}, {"cherry", 8}, {"melon", 2000}}};

TEST(Table, FindsByName) {
  const Table<Fruit> table("fruit", kFruit);
  EXPECT_EQ(table.at("melon").weight_g, 2000);
  EXPECT_EQ(table.find("cherry"), &kFruit[1]);
  EXPECT_EQ(table.find("cherr"), nullptr);
  EXPECT_EQ(table.size(), 3U);
  EXPECT_EQ(table.names(), "apple, cherry, melon");
  int sum = 0;
  for (const Fruit& fruit : table) sum += fruit.weight_g;
  EXPECT_EQ(sum, 150 + 8 + 2000);
}

TEST(Table, AnUnknownNameListsTheKnownOnes) {
  const Table<Fruit> table("fruit", kFruit);
  EXPECT_EQ(message_of([&] { (void)table.at("plum"); }), "unknown fruit 'plum'; known: apple, cherry, melon");
  EXPECT_EQ(message_of([&] { (void)table.at(""); }), "unknown fruit ''; known: apple, cherry, melon");
  EXPECT_EQ(message_of([&] { (void)table.at("Mellon"); }),
            "unknown fruit 'Mellon'; known: apple, cherry, melon; did you mean 'melon'?");
}

template <class Entry>
void expect_usable(const Table<Entry>& table) {
  std::set<std::string_view> names;
  for (const Entry& entry : table) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name << " is listed twice";
    // A name stands in comma-separated texts and in CSV.
    EXPECT_EQ(entry.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string_view::npos)
        << entry.name;
    EXPECT_EQ(&table.at(entry.name), &entry);
  }
  EXPECT_FALSE(names.empty());
}

TEST(Table, EveryTableOfSimIsUsable) {
  expect_usable(op_table());
  expect_usable(strategy_table());
  expect_usable(schedule_table());
  expect_usable(collective_table());
  expect_usable(cost_model_table());
}

}  // namespace
}  // namespace sim
