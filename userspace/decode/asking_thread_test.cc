// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/asking_thread.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

namespace mycroft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(AskingThread, AnswersEachQuestionOnce) {
  AskingThread<int, std::string> thread([](const int& n) { return std::to_string(n); });
  EXPECT_FALSE(thread.open());
  EXPECT_FALSE(thread.Take());
  for (int n = 0; n < 100; ++n) {
    ASSERT_TRUE(thread.Ask(n));
    EXPECT_EQ(thread.Take(seconds(10)), std::to_string(n));
    EXPECT_FALSE(thread.answered());
    EXPECT_FALSE(thread.Take());
  }
}

TEST(AskingThread, DropsQuestionsWhileOneIsOpen) {
  auto gate = std::make_shared<std::promise<void>>();
  AskingThread<int, int> thread([opened = gate->get_future().share()](const int& n) {
    opened.wait();
    return n;
  });
  EXPECT_TRUE(thread.Ask(1));
  EXPECT_FALSE(thread.Ask(2));
  EXPECT_FALSE(thread.Take(milliseconds(10)));
  EXPECT_TRUE(thread.open());
  gate->set_value();
  EXPECT_EQ(thread.Take(seconds(10)), 1);
  EXPECT_FALSE(thread.open());
  EXPECT_TRUE(thread.Ask(3));
  EXPECT_EQ(thread.Take(seconds(10)), 3);
}

// Where the kernel does not give the thread back, its owner goes on.
TEST(AskingThread, OneThatHangsIsLeft) {
  auto gate = std::make_shared<std::promise<void>>();
  auto entered = std::make_shared<std::promise<void>>();
  auto left = std::make_shared<std::promise<void>>();
  const auto begin = std::chrono::steady_clock::now();
  {
    AskingThread<int, int> thread(
        [entered, left, opened = gate->get_future().share()](const int& n) {
          entered->set_value();
          opened.wait();
          left->set_value();
          return n;
        });
    ASSERT_TRUE(thread.Ask(1));
    entered->get_future().wait();
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, seconds(2));
  gate->set_value();  // and what it comes back to is still there
  EXPECT_EQ(left->get_future().wait_for(seconds(10)), std::future_status::ready);
}

}  // namespace
}  // namespace mycroft
