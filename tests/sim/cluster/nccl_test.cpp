// NCCL's times against published ones that they weren't fitted to: tests/golden/nccl_all_reduce.csv.
#include "sim/cluster/nccl.hpp"

#include <cmath>
#include <functional>
#include <sstream>

#include "sim/cost/cost_model.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using namespace testing;

constexpr double kMiB = 1 << 20;

struct Published {
  std::string gpu, algorithm;
  NcclMeasurement measured;
};

std::vector<Published> published(const std::function<bool(const Published&)>& which) {
  std::istringstream file(golden_text("nccl_all_reduce.csv"));
  std::vector<Published> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream cells(line);
    Published row;
    std::string members, all_bytes, us;
    std::getline(cells, row.gpu, ','), std::getline(cells, members, ','), std::getline(cells, row.algorithm, ','),
        std::getline(cells, all_bytes, ','), std::getline(cells, us);
    row.measured = {static_cast<std::uint32_t>(std::stoul(members)), std::stod(all_bytes), std::stod(us) * 1e-6};
    if (which(row)) rows.push_back(row);
  }
  return rows;
}

std::vector<NcclMeasurement> measured_of(const std::vector<Published>& rows) {
  std::vector<NcclMeasurement> measured;
  for (const Published& row : rows) measured.push_back(row.measured);
  return measured;
}

/// The mean of |forecast / published - 1|.
double mean_error(const std::vector<Published>& rows, const std::function<double(const NcclMeasurement&)>& forecast_s) {
  double sum = 0;
  for (const Published& row : rows) sum += std::abs(forecast_s(row.measured) / row.measured.seconds - 1);
  return sum / static_cast<double>(rows.size());
}

// Two and four GPUs, ten sizes.
bool is_fitted_to(const NcclMeasurement& m) { return (m.members == 2 || m.members == 4) && m.bytes <= 128 * kMiB; }
/// Every 128th of the published sizes, which are the multiples of 1 MiB up to 1 GiB.
bool is_of_every_size(const NcclMeasurement& m) { return static_cast<int>(m.bytes / kMiB) % 128 == 64; }

/// As `predict` has it.
double forecast_s(const Cluster& cluster, const NcclMeasurement& m) {
  const TransferCost cost =
      make_cost_model("analytic", cluster)
          ->transfer(
              {.kind = InstructionKind::collective, .bytes = static_cast<std::int64_t>(m.bytes), .members = m.members});
  return cost.latency_s + cost.wire_s;
}

TEST(Nccl, OtherNumbersOfGpusAndLargerMessagesTakeWhatIsPublished) {
  for (const std::string gpu : {"A100", "V100"}) {
    const auto rows_of = [&](bool (*which)(const NcclMeasurement&)) {
      return published(
          [&](const Published& row) { return row.gpu == gpu && row.algorithm == "ring" && which(row.measured); });
    };
    const std::vector<Published> fitted = rows_of(is_fitted_to);
    ASSERT_EQ(fitted.size(), 20U);
    // The catalog's table is these 20; a DGX-1's rings are those that its cube mesh has.
    Cluster cluster = load_cluster("dgx_a100_nccl", 8);
    if (gpu == "V100")
      cluster.levels[0].link.nccl = fit_nccl(measured_of(fitted), {{3, 2}, {4, 4}, {6, 2}, {7, 4}, {8, 6}});
    const auto expect_below = [&](double bound, const char* what, const std::vector<Published>& rows) {
      const double error = mean_error(rows, [&](const NcclMeasurement& m) { return forecast_s(cluster, m); });
      EXPECT_LT(error, bound) << gpu << ' ' << what;
      std::printf("%s: %-54s %.1f %% off (%zu)\n", gpu.c_str(), what, 100 * error, rows.size());
    };
    const std::vector<Published> larger =
        rows_of([](const NcclMeasurement& m) { return (m.members == 2 || m.members == 4) && m.bytes > 128 * kMiB; });
    const std::vector<Published> others =
        rows_of([](const NcclMeasurement& m) { return m.members != 2 && m.members != 4 && is_of_every_size(m); });
    std::vector<Published> all = others;
    all.insert(all.end(), larger.begin(), larger.end());
    constexpr double kBound = 0.05, kPartsBound = 0.06;
    expect_below(kBound, "fitted to 2 and 4 GPUs, 1 to 128 MiB", fitted);
    expect_below(kBound, "what it wasn't fitted to, every 128th size", all);
    expect_below(kPartsBound, "of it 2 and 4 GPUs, up to 8 times as large", larger);
    expect_below(kPartsBound, "of it 3, 5 to 8 GPUs", others);
    // What two and four GPUs don't show: among three, and among five and more, the least time is 10 to 40 us longer.
    constexpr double kSmallBound = 0.15;
    expect_below(kSmallBound, "3, 5 to 8 GPUs, 1, 2, 4, 8, 16, 32 MiB", rows_of([](const NcclMeasurement& m) {
                   return m.members != 2 && m.members != 4 && m.bytes <= 32 * kMiB;
                 }));
  }
}

// 8 B or 32 KiB to 16 GiB among eight GPUs: fitted to every second size. Of H100's, two of 32 are 1.4 and 4 times what their
// neighbours are.
TEST(Nccl, SmallMessagesBetweenFittedOnesTakeWhatIsPublished) {
  double small = 0, large = 0;
  std::size_t smalls = 0, larges = 0;
  for (const std::string gpu : {"A100", "H100", "H200", "B200"}) {
    const std::vector<Published> all =
        published([&](const Published& row) { return row.gpu == gpu && row.algorithm == "any"; });
    std::vector<NcclMeasurement> fitted;
    for (std::size_t i = 0; i < all.size(); i += 2) fitted.push_back(all[i].measured);
    const NcclTimes times = fit_nccl(fitted);
    EXPECT_TRUE(times.hop[0].has_value()) << gpu;  // LL
    for (std::size_t i = 1; i < all.size(); i += 2) {
      const NcclMeasurement& m = all[i].measured;
      const double error = std::abs(times.ring(m.members, m.bytes, 2).seconds() / m.seconds - 1);
      (m.bytes < kMiB ? small : large) += error;
      ++(m.bytes < kMiB ? smalls : larges);
    }
  }
  EXPECT_LT(small / static_cast<double>(smalls), 0.11);
  EXPECT_LT(large / static_cast<double>(larges), 0.08);
  std::printf(
      "8 A100, H100, H200, B200, between the sizes fitted to: below 1 MiB %.1f %% off (%zu), above %.1f %% (%zu)\n",
      100 * small / static_cast<double>(smalls), smalls, 100 * large / static_cast<double>(larges), larges);
}

// Fitted to the fewest GPUs that use it.
TEST(Nccl, TheSwitchAddsUpForAnyNumberOfGpus) {
  for (const auto& [gpu, fewest] : {std::pair("H200", 5U), std::pair("B200", 6U)}) {
    const std::vector<Published> rows =
        published([&](const Published& row) { return row.gpu == gpu && row.algorithm == "nvls"; });
    NcclTimes times;
    for (const Published& row : rows)
      if (row.measured.members == fewest)
        times.nvls = {.base = {},
                      .bandwidth = BytesPerSecond::from_base((fewest + 1.0) / fewest * row.measured.bytes /
                                                             row.measured.seconds)};
    ASSERT_TRUE(times.nvls.has_value());
    std::vector<Published> others = rows;
    std::erase_if(others, [&](const Published& row) { return row.measured.members == fewest; });
    ASSERT_GE(others.size(), 2U);
    const double error =
        mean_error(others, [&](const NcclMeasurement& m) { return times.by_switch(m.members, m.bytes)->seconds(); });
    EXPECT_LT(error, 0.03) << gpu;
    std::printf("%s by NVLS, from %u GPUs for more: %.1f %% off (%zu)\n", gpu, fewest, 100 * error, others.size());
  }
}

TEST(Nccl, AFitFindsWhatTimesWereMadeOf) {
  NcclTimes made;
  made.base = microseconds(20);
  made.hop = {std::nullopt, microseconds(1), microseconds(4)};
  made.local = gigabytes_per_second(500);
  made.per_ring = gigabytes_per_second(250);
  std::vector<NcclMeasurement> measured;
  for (const std::uint32_t members : {2U, 4U})
    for (const double MiB : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512})
      measured.push_back({members, MiB * kMiB, made.ring(members, MiB * kMiB, 2).seconds()});
  const NcclTimes found = fit_nccl(measured);
  EXPECT_LT(error_of(found, measured), 1e-3);
  for (const std::uint32_t members : {3U, 8U})
    for (const double MiB : {1, 100, 4096})
      EXPECT_NEAR(found.ring(members, MiB * kMiB, 2).seconds() / made.ring(members, MiB * kMiB, 2).seconds(), 1, 0.02)
          << members << ' ' << MiB;
  EXPECT_FALSE(found.hop[0].has_value());  // nothing below 1 MiB
}

TEST(Nccl, FollowsItsFormula) {
  NcclTimes times;
  times.base = microseconds(10);
  times.hop = {microseconds(1), microseconds(2), microseconds(5)};
  times.local = gigabytes_per_second(500);
  times.per_ring = gigabytes_per_second(100);
  times.rings = {{4, 2}};
  times.nvls = {.base = microseconds(30), .bandwidth = gigabytes_per_second(300)};
  // 1 GB: Simple. Six hops; 1.5 GB over each link, on two rings.
  EXPECT_NEAR(times.ring(4, 1e9, 2).seconds(), 10e-6 + 6 * 5e-6 + 1.0 / 500 + 1.5 / 200, 1e-12);
  EXPECT_NEAR(times.ring(4, 1e9, 1).seconds(), 10e-6 + 3 * 5e-6 + 0.5 / 500 + 0.75 / 200, 1e-12);
  EXPECT_NEAR(times.ring(2, 1e9, 2).seconds(), 10e-6 + 2 * 5e-6 + 1.0 / 500 + 1.0 / 100, 1e-12);
  EXPECT_NEAR(times.chain(4, 1e9).seconds(), 10e-6 + 6 * 5e-6 + 1.0 / 500 + 2.0 / 200, 1e-12);
  EXPECT_NEAR(times.ring(4, 1e3, 2).seconds(), 10e-6 + 6e-6 + 2 * (1e-6 / 500 + 1.5e-6 / 200), 1e-12);  // LL
  EXPECT_NEAR(times.ring(4, 1e6, 2).seconds(), 10e-6 + 12e-6 + 128.0 / 120 * (1e-3 / 500 + 1.5e-3 / 200), 1e-12);
  EXPECT_NEAR(times.by_switch(4, 1e9)->seconds(), 30e-6 + 1.25 / 300, 1e-12);
}

TEST(Nccl, AFitTakesSoManySizes) {
  std::vector<NcclMeasurement> measured;
  for (int i = 1; i <= 65; ++i) measured.push_back({2, 1e6 * i, 1e-4 * i});
  EXPECT_EQ(message_of([&] { fit_nccl(measured); }), "all_reduces of 65 sizes: a fit takes 64 at most");
  measured.pop_back();
  EXPECT_LT(error_of(fit_nccl(measured), measured), 0.05);
}

std::string with_nccl(const std::string& nccl, const std::string& more = "") {
  return R"({"format": "paragauge-cluster-2", "name": "mine", "world": "nccl", "device": "a100_sxm_80g", )" + more +
         R"("levels": [{"name": "node", "size": 8, "link": {"latency_us": 3, "bandwidth_GBps": 230, "nccl": )" + nccl +
         "}}]}";
}

TEST(Nccl, IsReadFromClusterFiles) {
  const TemporaryFolder folder;
  const auto load = [&](const std::string& text) { return load_cluster(folder.file("mine.json", text), 8); };
  const std::string given = R"({"base_us": 10, "hop_us": {"simple": 5}, "ring_GBps": 100, "local_GBps": 500,
                                "nvls": {"base_us": 30, "bandwidth_GBps": 300}})";
  const NcclMeasurement gigabyte{4, 1e9, 1};
  const double ring_s = 10e-6 + 6 * 5e-6 + 1.0 / 500 + 1.5 / 100, switch_s = 30e-6 + 1.25 / 300;
  EXPECT_NEAR(forecast_s(load(with_nccl(given)), gigabyte), switch_s, 1e-12);
  EXPECT_NEAR(forecast_s(load(with_nccl(given, R"("nccl_algo": "ring", )")), gigabyte), ring_s, 1e-12);
  EXPECT_NEAR(forecast_s(load(with_nccl(given, R"("nccl_algo": "nvls", )")), gigabyte), switch_s, 1e-12);
  EXPECT_NEAR(forecast_s(load(with_nccl(given, R"("nccl_algo": "tree", )")), gigabyte), ring_s + 0.5 / 100, 1e-12);
  EXPECT_EQ(
      load_cluster("dgx_a100_nccl", 8).remarks,
      std::vector<std::string>{"NCCL's rings are fitted to 20 published all_reduces among 2, 4 GPUs, from which the "
                               "fit is 2.4 % off on average"});
  const auto refused = [&](const std::string& text) {
    const std::string message = message_of([&] { (void)load(text); });
    return message.substr(message.find("mine.json"));
  };
  EXPECT_EQ(refused(with_nccl(R"({"all_reduce": [{"members": 2, "MiB": [1, 2], "us": [40]}]})")),
            "mine.json: levels[0]: link: nccl: all_reduce[0]: 2 of MiB, but 1 of us");
  EXPECT_EQ(refused(with_nccl(R"({"all_reduce": [{"members": 2, "MiB": [1], "us": [40]}]})")),
            "mine.json: levels[0]: link: nccl: 1 measured all_reduce: a fit needs 3 or more");
  EXPECT_EQ(refused(with_nccl(R"({"all_reduce": [{"members": 1, "MiB": [1], "us": [40]}]})")),
            "mine.json: levels[0]: link: nccl: all_reduce[0]: members=1 must be from 2 to 1048576");
  EXPECT_EQ(refused(with_nccl(R"({"all_reduce": [{"members": 2, "MiB": [1], "us": [0]}]})")),
            "mine.json: levels[0]: link: nccl: all_reduce[0]: 1 MiB in 0 us: must be more than 0, and finite");
  EXPECT_EQ(refused(with_nccl(R"({"base_us": 1, "hop_us": {}, "ring_GBps": 9})")),
            "mine.json: levels[0]: link: nccl: hop_us: no protocol; known: ll, ll128, simple");
  EXPECT_EQ(
      refused(with_nccl(R"({"base_us": 1, "hop_us": {"simple": 1}, "ring_GBps": 9})", R"("nccl_algo": "nvls", )")),
      "mine.json: nccl_algo=nvls is for one node whose link has nccl.nvls");
  EXPECT_EQ(refused(replaced(with_nccl(given), R"("nccl", "device)", R"("local", "device)")),
            "mine.json: link: nccl is for the innermost level of world nccl; found level 'node' of local");
}

}  // namespace
}  // namespace sim
