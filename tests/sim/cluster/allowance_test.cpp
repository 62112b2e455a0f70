#include "sim/cluster/allowance.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace sim {
namespace {

/// A folder with proc and sys of a machine that is described.
class AllowanceTest : public testing::Test {
 protected:
  AllowanceTest() { std::filesystem::remove_all(root_); }
  ~AllowanceTest() override { std::filesystem::remove_all(root_); }
  AllowanceTest(const AllowanceTest&) = delete;

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void expect_no_limit() const {
    EXPECT_EQ(cores_of_group(root_), std::nullopt);
    EXPECT_EQ(usable_memory(root_), machine_);
  }

  // Each by itself: ctest runs several at a time.
  const std::string root_ =
      testing::TempDir() + "allowance_" + testing::UnitTest::GetInstance()->current_test_info()->name();
  const double machine_ = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
};

TEST_F(AllowanceTest, WithoutLimitsItIsTheMachine) {
  expect_no_limit();  // no control groups at all
  EXPECT_EQ(free_memory(root_), std::nullopt);
  write("/proc/meminfo", "MemTotal: 4096 kB\nMemAvailable:    1024 kB\n");
  write("/proc/self/cgroup", "0::/user/me\n");
  write("/sys/fs/cgroup/user/me/memory.max", "max\n");
  write("/sys/fs/cgroup/user/me/cpu.max", "max 100000\n");
  expect_no_limit();
  EXPECT_EQ(free_memory(root_), 1024.0 * 1024);
}

// As in a container: its own group is the top.
TEST_F(AllowanceTest, SecondVersion) {
  write("/proc/meminfo", "MemAvailable: 1024 kB\n");
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  write("/sys/fs/cgroup/memory.max", "1000\n");
  write("/sys/fs/cgroup/memory.current", "900\n");
  EXPECT_EQ(cores_of_group(root_), 1.5);
  EXPECT_EQ(usable_memory(root_), 1000);
  EXPECT_EQ(free_memory(root_), 100.0);
  write("/sys/fs/cgroup/memory.stat", "anon 500\ninactive_file 100\nactive_file 200\nslab 7\n");
  EXPECT_EQ(free_memory(root_), 400.0);  // the page cache can be given back
  write("/sys/fs/cgroup/memory.current", "5000\n");
  EXPECT_EQ(free_memory(root_), 0.0);
}

// A machine that is full, under a group that has much of its own left; and the other way about.
TEST_F(AllowanceTest, TheScarcestShare) {
  EXPECT_EQ(free_share(root_), 1);
  write("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 100 kB\n");
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/memory.max", "1000\n");
  write("/sys/fs/cgroup/memory.current", "500\n");
  EXPECT_DOUBLE_EQ(free_share(root_), 0.1);
  write("/sys/fs/cgroup/memory.current", "950\n");
  EXPECT_DOUBLE_EQ(free_share(root_), 0.05);
}

// As in a Slurm job or a service: what lies above limits too.
TEST_F(AllowanceTest, TheTightestOfAllAboveCounts) {
  write("/proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  write("/sys/fs/cgroup/slurm/job_7/memory.max", "2000\n");
  write("/sys/fs/cgroup/slurm/job_7/step_0/memory.max", "3000\n");
  write("/sys/fs/cgroup/slurm/cpu.max", "400000 100000\n");
  write("/sys/fs/cgroup/slurm/job_7/cpu.max", "800000 100000\n");
  EXPECT_EQ(usable_memory(root_), 2000);
  EXPECT_EQ(free_memory(root_), 2000);
  EXPECT_EQ(cores_of_group(root_), 4);
}

TEST_F(AllowanceTest, FirstVersion) {
  write("/proc/self/cgroup", "9:name=systemd:/\n4:memory:/docker/0b9f\n2:cpu,cpuacct:/docker/0b9f\n");
  write("/sys/fs/cgroup/memory/docker/0b9f/memory.limit_in_bytes", "2000\n");
  write("/sys/fs/cgroup/memory/docker/0b9f/memory.usage_in_bytes", "1500\n");
  write("/sys/fs/cgroup/memory/docker/0b9f/memory.stat",
        "inactive_file 7\ntotal_inactive_file 100\ntotal_active_file 0\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/cpu/docker/0b9f/cpu.cfs_quota_us", "50000\n");
  write("/sys/fs/cgroup/cpu/docker/0b9f/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(usable_memory(root_), 2000);
  EXPECT_EQ(free_memory(root_), 600);
  EXPECT_EQ(cores_of_group(root_), 0.5);
}

TEST(Allowance, CoresAreThoseOfTheAffinity) {
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  const std::set<std::uint32_t> cores(core_list().begin(), core_list().end());
  EXPECT_EQ(cores.size(), static_cast<std::size_t>(CPU_COUNT(&set)));
  for (const std::uint32_t core : cores) EXPECT_TRUE(CPU_ISSET(core, &set)) << core;
  EXPECT_GE(usable_cores(), 1U);
  EXPECT_LE(usable_cores(), cores.size());
}

TEST(Allowance, SomeMemoryIsFree) {
  EXPECT_GT(free_memory().value_or(0), 0);
  EXPECT_LE(free_memory().value_or(0), usable_memory());
}

}  // namespace
}  // namespace sim
