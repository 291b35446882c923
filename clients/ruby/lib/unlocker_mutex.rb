# frozen_string_literal: true

require "json"
require "net/http"
require "openssl"
require "securerandom"
require "socket"
require "time"
require "timeout"
require "uri"

# Locks in etcd for several machines, by protocol 1 of unlocker (docs/protocol.md).
#
#   client = UnlockerMutex::Client.new(["https://etcd-1:2379", "https://etcd-2:2379"], ca_file: "ca.pem")
#   client.lock("billing/invoices", timeout: 30, purpose: "invoices of November") do |lock|
#     invoices.each_with_index do |invoice, n|
#       lock.check!                                   # raises Lost
#       invoice.write(fencing_token: lock.token)
#       lock.alive("invoice #{n} of #{invoices.size}")
#     end
#   end
#
# A holder that dies leaves its lock behind; the daemon, unlocker, removes it after its patience.
#
# Guaranteed: every call ends in time, name resolution excepted. An answer that was lost never leads
# to a second lock, nor to a lock that is held without its caller knowing: the call is repeated with
# the same uuid. A lock reports its loss before its deadline by the monotonic and by the wall clock,
# so also after the process was suspended. Only keys of one's own are written and deleted, and the
# tickets of waiters that hang.
#
# Not guaranteed: that work stops when the lock is lost. Call check! before each step, and send the
# token to the resource that the lock protects. A manual unlock is noticed at the next renewal only.
#
# A Client may be used by several threads, and after a fork. A Lock may be handed to another
# thread. Times are seconds.
module UnlockerMutex
  VERSION = "0.1.0"

  EXPECTED = %w[uuid hostname locked_at alert_at auto_unlock_at alive_at owner purpose pid status].freeze
  FIELDS = [*EXPECTED, "backtrace", "stack", "answered_at"].freeze
  RESERVED = [*FIELDS, "identity"].freeze # by which a Go client may take its own lock again
  MAX_OPS = 128 # etcd's --max-txn-ops, which counts each level of nested transactions
  MAX_BYTES = 1 << 20 # below etcd's --max-request-bytes of 1.5 MiB
  MAX_TEXT = 4 << 10 # of owner, purpose, status, backtrace and stack
  MAX_VALUE = 64 << 10 # of metadata
  MAX_RECORD = 32 << 10 # of a removal
  YEAR = 366 * 86_400
  IDLE = 10 # for which a connection is kept: less than what balancers and firewalls allow
  SILENCE = 60 # after which a watch without an event is replaced
  JITTER = 0.02 # over which the waiters without tickets spread when a lock is released
  LAST = 0.2 # before the end of a wait, when a waiter reads again who holds the lock if that has changed
  TICKET = 10 # for which the tickets of a process stay after it has died
  GLANCE = 0.05 # for which the second in the queue sees the lock free before it looks whether there still is a first
  PASS = 1 # for which it sees the lock free before it passes over the first
  PLAIN = 60 # between two attempts to wait with tickets without the right to
  MAX_HOLDS = 64 # uuids in a ticket
  RETRY = 1 # between two renewals if the first one failed
  ATTEMPT = 5.0 # for which a request may be on its way: the daemon counts on it
  LOGIN = 60 # between two logins at least, unless etcd refuses the token: it may be slow, and a login costs it CPU time
  RENEWAL = 100 # between two renewals at most: the daemon's patience ends after five minutes
  LONGEST = 10 # between two attempts to release what late attempts have taken
  ANSWER = 5 # between two answers of a lock to questions, whoever asks
  SETTLED = 0.5 # for which a lock is held before its client listens to questions
  DEAF = 600 # between two attempts to listen without the right to
  EXPLAIN = 2 # for which the record of a removal is looked for: the daemon writes it some milliseconds after the removal
  private_constant(*(constants - [:VERSION]))

  # The base of all errors of this module.
  class Error < StandardError
    # Attempts of the failed call that may have been executed, or may be executed late.
    attr_writer :unanswered # :nodoc:

    def unanswered # :nodoc:
      @unanswered || 0
    end
  end

  # No endpoint answered in time. What was asked for may have been done. The text has the last reason that is not a
  # time-out, if there is one; cause is that exception.
  class Unreachable < Error; end

  # etcd refused the request.
  class Refused < Error
    # The gRPC status code.
    attr_reader :code

    def initialize(code, message)
      super(message)
      @code = code
    end

    # Reports whether etcd has reached its quota.
    def no_space?
      message.include?("database space exceeded")
    end
  end

  # The lock is no longer held.
  class Lost < Error
    # The name of the lock.
    attr_reader :name
    # :forced (it was removed by force), :taken (and another holds it), :deadline (it was not renewed
    # in time), :unreachable or :no_space (so renewals failed), :restored (etcd was set back to an
    # earlier state), :forked (this process is a child of the holder), or :released.
    attr_reader :reason

    def initialize(name, reason, &read)
      super("lock #{name.inspect} is lost: #{reason}")
      @name = name
      @reason = reason
      @read = read if %i[forced taken].include?(reason) # nil also after it was read
      @removal = nil
    end

    # Reads from etcd, once and for up to two seconds, who removed the lock, for the text of the error, too.
    # Returns a Removal, or nil without a record.
    def removal
      read = @read
      @removal = read.call || @removal if read # another thread may have read it
      @read = nil
      @removal
    end

    def to_s # :nodoc:
      @removal ? "#{super}: removed #{@removal}" : super
    end
  end

  # Another holder has the lock, or others all its slots; or others wait for it.
  class Held < Error
    # The Holder. Of slots it is that of one of them.
    attr_reader :holder

    def initialize(holder, name = holder.name, slots = 1)
      super(if holder.fields.empty? then "lock #{name.inspect} has other waiters"
            elsif slots > 1 then "the #{slots} slots of #{name.inspect} are held, one of them by #{holder}"
            else "lock #{holder.name.inspect} is held by #{holder}"
            end)
      @holder = holder
    end
  end

  # The record of who holds a lock, as the holder wrote it: untrusted text. fields is a Hash.
  Holder = Struct.new(:name, :fields) do
    # A timestamp by the holder's clock, such as locked_at or auto_unlock_at; nil if it is missing or unreadable.
    def time(field)
      text = fields[field].to_s[0, 64]
      text.include?("T") ? Time.iso8601(text) : Time.at(Float(text)).utc
    rescue ArgumentError, RangeError # FloatDomainError is one
      nil
    end

    # One line for logs and for people.
    def to_s
      words = { "owner" => "", "hostname" => "on ", "pid" => "pid ", "purpose" => "for ", "status" => "at " }.filter_map do |field, word|
        word + fields[field][0, 200].inspect if fields[field]
      end
      { "since" => "locked_at", "until" => "auto_unlock_at" }.each { |word, field| words << "#{word} #{time(field).iso8601}" if time(field) }
      words.empty? ? "an unknown holder" : words.join(" ")
    end
  end

  # What a record in etcd says about a removal: bounded, untrusted text, safe to print by to_s. trigger is
  # "expiry", "orphan" or "manual".
  Removal = Struct.new(:at, :trigger, :replica, :rule, :who, :why) do
    # One line for logs and for people.
    def to_s
      words = { "by" => who, "by replica" => replica, "trigger" => trigger, "rule" => rule, "because" => why }
      [*words.filter_map { |word, text| "#{word} #{text[0, 200].inspect}" unless text.empty? }, "at #{at.iso8601}"].join(", ")
    end

    # Returns nil if the text is not a record of the removal of the uuid.
    def self.parse(text, uuid) # :nodoc:
      record = JSON.parse(text) if text.bytesize <= MAX_RECORD
      return unless record.is_a?(Hash) && record["uuid"] == uuid

      rule = record["verdict"]["reason"] if record["verdict"].is_a?(Hash)
      texts = [*record.values_at("trigger", "replica"), rule, *record.values_at("who", "reason")]
      new(Time.iso8601(record["when"].to_s[0, 64]).utc, *texts.map { |it| it.is_a?(String) ? it.scrub.byteslice(0, MAX_TEXT).scrub("") : "" })
    rescue ArgumentError, RangeError, JSON::ParserError
      nil
    end
  end

  # What the caller asked for, checked and completed.
  class Terms # :nodoc:
    attr_reader :expect, :patience, :max_hold, :backtrace, :fields

    def initialize(expect: nil, patience: nil, max_hold: nil, owner: "", purpose: "", metadata: {}, backtrace: true)
      @patience = patience || (max_hold ? 120 : [120, 2 * (expect || 0)].max)
      @expect = expect || [60, @patience / 2.0].min
      @max_hold = max_hold
      @backtrace = backtrace
      { expect: [@expect, 0.001], patience: [@patience, 1], max_hold: [max_hold || 1, 1] }.each do |option, (seconds, least)|
        raise ArgumentError, "#{option} must be from #{least} to #{YEAR} seconds, not #{seconds}" unless seconds >= least && seconds <= YEAR
      end
      raise ArgumentError, "expect is more than patience, which needs max_hold" if @expect > @patience && !max_hold
      raise ArgumentError, "metadata has more than 32 fields" if metadata.size > 32

      @fields = { "owner" => owner[0, MAX_TEXT], "purpose" => purpose[0, MAX_TEXT], **metadata.to_h { |name, value| pair(name.to_s, value.to_s) } }
    end

    # The time until auto_unlock_at of a lock that has been held for so long.
    def length(held = 0)
      max_hold ? [patience, max_hold - held].min : patience
    end

    private

    def pair(name, value)
      return [name, value] if name.length.between?(1, 64) && !name.include?("/") && !RESERVED.include?(name) && value.length <= MAX_VALUE

      raise ArgumentError, "metadata #{name.inspect} is a field of the protocol, not the name of a field, or above #{MAX_VALUE} characters"
    end
  end
  private_constant :Terms

  # Small functions of the others.
  module Helpers # :nodoc:
    module_function

    def monotonic
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    def stamp(seconds)
      format("%.3f", seconds)
    end

    def b64(text)
      [text].pack("m0")
    end

    def text(encoded)
      bytes(encoded).scrub
    end

    def bytes(encoded)
      encoded.unpack1("m").force_encoding(Encoding::UTF_8)
    end

    def put(key, value)
      { requestPut: { key: b64(key), value: b64(value) } }
    end

    def get(key)
      { requestRange: { key: b64(key) } }
    end

    def del(key)
      { requestDeleteRange: { key: b64(key) } }
    end

    def valid(name)
      return name.encode("UTF-8") if name.encode("UTF-8").valid_encoding? && "#{name}/".split("/", -1)[..-2].all?(/./m)

      raise ArgumentError, "name #{name.inspect} is not a name: it is not UTF-8, or empty, or has an empty segment"
    end

    # Starts a thread. Ruby permits none in what is left of a process that ends.
    def start(name, &block)
      Thread.new(&block).tap { |thread| thread.name = name }
    rescue ThreadError
      nil
    end

    # Untrusted text, bounded and in one line.
    def shown(text)
      text.byteslice(0, 500).force_encoding(Encoding::UTF_8).scrub.inspect[1..-2].gsub('\\"', '"')
    end

    # Which of two failures says more: the last one, unless it is a time-out.
    def telling(first, last)
      first && [Timeout::Error, Errno::ETIMEDOUT, Etcd::Overdue].any? { |kind| last.cause.is_a?(kind) } ? first : last
    end

    # The stack of a thread without the frames of this file, innermost first, of which the start is kept.
    def stack(frames)
      return "the thread that locked has ended" unless frames

      frames.drop_while { |frame| frame.start_with?("#{__FILE__}:", "<internal:") }.join("\n")[0, MAX_TEXT].scrub
    end

    # When a holder gives up a lock: early, to stop before another can hold it.
    def ends(start, patience)
      start + patience - [5, patience / 10.0].min
    end
  end
  private_constant :Helpers

  # The answer to one transaction. unanswered are the attempts before it, which may have been executed, or may be executed late.
  Answer = Struct.new(:txn, :revision, :cluster, :unanswered) do # :nodoc:
    include Helpers

    def succeeded?
      txn["succeeded"]
    end

    # The value, create revision and mod revision of each key that the transaction has read.
    def found(txn = self.txn)
      (txn["responses"] || []).each_with_object({}) do |response, all|
        all.update(found(response["response_txn"])) if response["response_txn"]
        (response.dig("response_range", "kvs") || []).each do |kv|
          all[bytes(kv["key"])] = [text(kv["value"] || ""), kv["create_revision"].to_i, kv["mod_revision"].to_i]
        end
      end
    end
  end
  private_constant :Answer

  # A lock that is held until it is released or lost. Client makes it; several threads may use it.
  class Lock
    include Helpers

    attr_reader :name, :uuid
    # The fencing token: it grows with each acquisition of the name.
    attr_reader :token
    # What the client looks at.
    attr_reader :terms, :acquired_at, :renewing, :thread, :fiber, :deadline, :process # :nodoc:
    attr_accessor :alert_at, :renew_at # :nodoc:
    attr_reader :answer_at # :nodoc:
    # holding: the lock may be in etcd, by an attempt that was answered. late: attempts to take it that
    # were not answered, and may be executed late.
    attr_accessor :holding, :late # :nodoc:

    def initialize(client, name, terms, uuid = SecureRandom.uuid) # :nodoc:
      @client = client
      @name = valid(name)
      @terms = terms
      @uuid = uuid
      @backtrace = terms.backtrace ? stack(caller) : ""
      @process = Process.pid
      @holding = false
      @late = @token = 0
      @expires = 0 # when the last deadline that was sent passes
      @started = {} # monotonic time of each attempt, by its locked_at
      @written = []
      @thread = Thread.current
      @fiber = Fiber.current
      @renewing = Mutex.new # held during a renewal
      @mutex = Mutex.new # guards the end and the deadlines
      @trouble = :deadline # what the loss will be put down to if no renewal goes through
      @deadline = @wall_deadline = @acquired_at = 0
      @renew_at = @alert_at = @answer_at = Float::INFINITY
      @answered = -Float::INFINITY
      @status = nil
    end

    # Why the lock is lost or released, as a Lost; nil while it is held. It asks the clocks, not etcd, so it costs nothing.
    def lost
      return Lost.new(name, :forked) unless @process == Process.pid

      @mutex.synchronize do
        @lost ||= (Lost.new(name, @trouble) if monotonic >= @deadline || Time.now.to_f >= @wall_deadline)
      end
    end

    # Reports whether the lock is lost or released.
    def lost?
      !lost.nil?
    end

    # Raises Lost unless the lock is held. It asks the clocks, not etcd, so it costs nothing.
    def check!
      raise lost if lost
    end

    # Moves the deadlines forward: expect and patience are seconds from now, and stay for the next calls.
    # status says in words how far the work is. Raises Lost if the lock is lost, and Unreachable or
    # Refused if the renewal failed: the lock is then held until its deadline, so try again. A shorter
    # patience counts also then, since etcd may have it.
    def alive(status = nil, expect: nil, patience: nil)
      check!
      @renewing.synchronize do
        @terms = Terms.new(expect: expect || terms.expect, patience: patience || terms.patience, max_hold: terms.max_hold, backtrace: terms.backtrace)
        @thread = Thread.current
        @fiber = Fiber.current
        @status = status[0, MAX_TEXT] if status
        @client.renew([self], status: status)
      ensure
        @client.background.add(self)
      end
      check!
    rescue Unreachable, Refused
      check!
      raise
    end

    def marshal_dump # :nodoc:
      raise TypeError, "lock #{name.inspect} cannot be marshaled: only this process holds it. Pass the token, or lock in the other process"
    end

    # Without what it refers to: the client has the password, and all locks.
    def inspect # :nodoc:
      "#<#{self.class} #{name.inspect} uuid #{uuid} token #{token}>"
    end

    # Releases the lock. Raises Lost if it was lost before, and Unreachable or Refused if that is not
    # known: the release is then tried again in the background. So is that of a lost lock, which is
    # reported at once. Does nothing if the lock is released already.
    def unlock
      @client.unlock_all([self])
    end

    # The transaction that takes the lock or shows who has it.
    def acquisition # :nodoc:
      now = Time.now.to_f
      fields = { "uuid" => uuid, "hostname" => Socket.gethostname, "pid" => Process.pid.to_s, "locked_at" => stamp(now),
                 "alert_at" => stamp(now + terms.expect), "auto_unlock_at" => stamp(now + terms.length),
                 "backtrace" => @backtrace, **terms.fields }.reject { |_, value| value.empty? }
      @started.delete_if { |_, at| at < monotonic - terms.patience }
      @started[fields["locked_at"]] = monotonic
      @expires = monotonic + terms.length
      @written = fields.keys
      { compare: [{ target: "VERSION", result: "EQUAL", key: b64(key("uuid")), version: "0" }],
        success: fields.map { |field, value| put(key(field), value) }, failure: EXPECTED.map { |field| get(key(field)) } }
    end

    # Reads the answer of an acquisition, and returns the holder if it is another one.
    def acquired(answer) # :nodoc:
      revision = answer.revision
      at, began = @started.max_by(&:last)
      @late += answer.unanswered
      unless answer.succeeded?
        other = holder(answer.found)
        return other unless other.fields["uuid"] == uuid

        # An answer was lost. That attempt took the lock.
        @late -= 1
        revision = answer.found[key("uuid")][1]
        at, began = @started.assoc(other.fields["locked_at"]) || [at, began]
      end
      @holding = true
      @cluster = answer.cluster
      @token = @revision = revision # @revision is that of auto_unlock_at
      @acquired_at = began
      granted(began, at.to_f, terms.length, true)
      @client.background.add(self)
      nil
    end

    # Who holds the lock by the fields that were found, without those that an earlier holder has left.
    def holder(found) # :nodoc:
      created = found.fetch(key("uuid"), [])[1] || Float::INFINITY
      Holder.new(name, EXPECTED.select { |field| found[key(field)] && found[key(field)][2] >= created }.to_h { |field| [field, found[key(field)][0]] })
    end

    # Notes the deadlines that a transaction has written, as of the time before it was sent.
    def granted(began, wall, patience, alert) # :nodoc:
      @mutex.synchronize do
        @deadline = ends(began, patience)
        @wall_deadline = ends(wall, patience)
        more = terms.max_hold && began + patience < acquired_at + terms.max_hold
        @renew_at = more ? began + [patience / 3.0, RENEWAL].min : Float::INFINITY
        @trouble = :deadline
        @alert_at = terms.backtrace ? began + terms.expect : Float::INFINITY if alert
      end
    end

    # Notes the deadlines of a renewal that is about to be sent: earlier ones count from now, since etcd may have them without an answer.
    def asked(began, wall, patience) # :nodoc:
      @mutex.synchronize do
        @deadline = [@deadline, ends(began, patience)].min
        @wall_deadline = [@wall_deadline, ends(wall, patience)].min
        @expires = [@expires, began + patience].max
        @renew_at = [@renew_at, began + patience / 3.0].min if @renew_at.finite?
      end
    end

    def renewal(wall, patience, alert, status) # :nodoc:
      fields = { "auto_unlock_at" => stamp(wall + patience), "alive_at" => stamp(wall) }
      fields["alert_at"] = stamp(wall + terms.expect) if alert
      fields["status"] = status[0, MAX_TEXT] if status
      txn = if_mine(fields.map { |field, value| put(key(field), value) }, "uuid", "auto_unlock_at")
      # An attempt without an answer may be executed late. It must not bring back its deadline after that of a later one.
      txn[:compare] << { target: "MOD", result: "EQUAL", key: b64(key("auto_unlock_at")), mod_revision: @revision.to_s }
      txn
    end

    # Reports whether the lock was renewed, and ends it if it is lost. Otherwise its deadline was moved, such as by an attempt without an answer.
    def renewed?(answer) # :nodoc:
      reason = missing(answer)
      finish(reason) if reason
      @revision = answer.succeeded? ? answer.revision : answer.found.fetch(key("auto_unlock_at"), ["", 0, 0])[2]
      answer.succeeded? && !reason
    end

    def removal # :nodoc:
      if_mine((@written | FIELDS).map { |field| del(key(field)) }, "uuid")
    end

    # What the holder does now. The answer to a question has more, and is no renewal.
    def note(now) # :nodoc:
      fields = terms.backtrace ? { "stack" => stack(thread.backtrace) } : {}
      if answer_at <= now
        fields["status"] = @status if @status
        fields["answered_at"] = stamp(Time.now.to_f)
        @answer_at = Float::INFINITY
        @answered = now
      end
      if_mine(fields.map { |field, value| put(key(field), value) })
    end

    # Has a question answered.
    def ask(now) # :nodoc:
      @answer_at = [now, @answered + ANSWER].max
    end

    # Why the lock is lost, by the answer of a transaction that has compared the uuid, and reads it otherwise.
    def missing(answer) # :nodoc:
      return :restored if answer.cluster != @cluster || answer.revision < token # others may have taken the lock before, or after
      return if answer.succeeded?

      value, = answer.found[key("uuid")]
      @holding = value == uuid
      value ? (:taken unless @holding) : :forced
    end

    # Reports whether something in etcd is to be released, or may be.
    def left? # :nodoc:
      @holding || (@late.positive? && monotonic < @expires)
    end

    # Ends the lock, unless it has ended already, and returns the first reason.
    def finish(reason) # :nodoc:
      @mutex.synchronize { @lost ||= loss(reason) }
    end

    def loss(reason) # :nodoc:
      Lost.new(name, reason) { record }
    end

    def failed(error) # :nodoc:
      @mutex.synchronize { @trouble = error.is_a?(Refused) && error.no_space? ? :no_space : :unreachable }
    end

    def key(field) # :nodoc:
      "#{@client.prefix}#{name}/#{field}"
    end

    private

    # Reads the record of the removal until it is there, and gives up at the first error.
    def record
      key = "#{@client.audit}#{name.bytesize > 512 ? "#{name.byteslice(0, 512).scrub('')}…" : name}//#{token}"
      end_at = monotonic + EXPLAIN
      pause = 0.02
      while (found = @client.read(key, end_at)).empty? && monotonic + pause < end_at
        sleep(pause)
        pause *= 2
      end
      Removal.parse(found.values[0][0], uuid) if found.any?
    rescue Unreachable, Refused
      nil
    end

    def if_mine(requests, *otherwise)
      mine = { target: "VALUE", result: "EQUAL", key: b64(key("uuid")), value: b64(uuid) }
      { compare: [mine], success: requests, failure: otherwise.map { |field| get(key(field)) } }
    end
  end

  # Takes locks. It connects when it is first used, and may be used by several threads.
  class Client
    include Helpers

    attr_reader :prefix, :audit, :questions, :waiters # :nodoc:

    # endpoints are URLs or host:port of etcd members; the next one is asked when one fails. owner is
    # the default of its locks, which is otherwise the name of the script. request_timeout bounds
    # each transaction, with all its attempts. audit_prefix is where the daemon keeps records of removals
    # (see Lost#removal), /unlocker/audit followed by the prefix by default. ask_prefix is where unlocker ask asks the
    # holders of locks, /unlocker/ask followed by the prefix by default: a thread listens there while locks are held,
    # and answers with the stack and the last status. Without the right to read there it warns once, and the rest works.
    # waiters_prefix is where waiters queue, /unlocker/waiters followed by the prefix by default: see lock.
    def initialize(endpoints = ["127.0.0.1:2379"], user: "", password: "", ca_file: nil, cert_file: nil, key_file: nil, server_name: nil,
                   prefix: "/mutexes/", owner: File.basename($PROGRAM_NAME), request_timeout: 5, audit_prefix: "/unlocker/audit#{prefix}", ask_prefix: "/unlocker/ask#{prefix}",
                   waiters_prefix: "/unlocker/waiters#{prefix}")
      raise ArgumentError, "endpoints must be an array of at least one URL" unless endpoints.is_a?(Array) && !endpoints.empty?
      raise ArgumentError, "prefix must end with a slash: #{prefix.inspect}" unless prefix.end_with?("/")
      raise ArgumentError, "request_timeout must be above 0, not #{request_timeout}" unless request_timeout.positive?

      @prefix = prefix
      @audit = "#{audit_prefix.delete_suffix('/')}/"
      @questions = "#{ask_prefix.delete_suffix('/')}/"
      @waiters = "#{waiters_prefix.delete_suffix('/')}/"
      @owner = owner
      @timeout = request_timeout
      @etcd = Etcd.new(endpoints, user, password, { ca_file: ca_file, cert_file: cert_file, key_file: key_file, server_name: server_name }, request_timeout)
      @background = Background.new(self, @etcd)
      @tickets = Tickets.new(@etcd)
      @plain_until = 0
    end

    # Times are seconds. Takes a lock, and waits for it for up to timeout; nil is without limit, 0 is try_lock. With a
    # block it yields the lock, releases it afterwards, and returns what the block does; it then
    # raises Lost if the lock was lost meanwhile, unless the block raises something else.
    #
    # expect:: the expected runtime, 60 by default: past it an alert fires, and the present stack of
    #          the thread that locked or renewed last is written to the lock
    # patience:: how long the lock lasts after the last renewal: 120 by default, or twice expect if
    #            that is more and there is no max_hold
    # max_hold:: a background thread renews the lock until then, and does not put off the alert
    # owner:: the name of the service, that of the client by default
    # purpose:: what the lock is for
    # metadata:: further fields, a Hash
    # backtrace:: false: write neither the stack at the call nor the one at the alert
    #
    # slots:: up to so many holders, 1 to 1000, may have the name at once. Each takes one of the locks NAME/0, NAME/1, …:
    #         the name of the lock says which
    #
    # Waiters get the lock in the order in which they came. Each has a ticket under waiters_prefix meanwhile, with a lease that a
    # thread keeps alive, and is woken when the lock is released. Without the right to read and write there it warns once, and
    # there is no order. It waits for etcd, too. Raises Held with the holder when timeout is over, Unreachable if
    # etcd does not answer then, and Refused if it does not accept the request.
    def lock(name, timeout: nil, slots: nil, **terms, &block)
      raise ArgumentError, "timeout must be at least 0, not #{timeout}" unless timeout.nil? || timeout >= 0
      raise ArgumentError, "slots must be from 1 to 1000, not #{slots}" unless slots.nil? || (slots.is_a?(Integer) && slots.between?(1, 1000))

      claim = Claim.new(self, @etcd, name, slots, Terms.new(owner: @owner, **terms))
      lock = timeout&.zero? ? claim.take(monotonic + @timeout) : claim.wait(timeout ? monotonic + timeout : Float::INFINITY)
      block ? hold(lock, &block) : lock
    end

    # Takes a lock if it is free, as lock does, or raises Held with the holder.
    def try_lock(name, **terms, &block)
      lock(name, timeout: 0, **terms, &block)
    end

    # Takes those of the locks that are free, about a hundred with each transaction. Returns an array
    # of them, and one of Held for the others. The options are those of lock, in seconds. Raises
    # Unreachable or Refused; then it holds none of them.
    def try_lock_all(names, **terms)
      terms = Terms.new(owner: @owner, **terms)
      locks = names.map { |name| Lock.new(self, name, terms) }
      raise ArgumentError, "names has a name twice" if locks.uniq(&:name).size < locks.size

      taken = []
      held = []
      releasing(locks) do
        @etcd.send_all(locks.map(&:acquisition)) do |n, answer|
          holder = locks[n].acquired(answer)
          holder ? held << Held.new(holder) : taken << locks[n]
        end
      end
      (locks - taken).each { |lock| background.release(lock) }
      [taken, held]
    end

    # Releases several locks as Lock#unlock does, in few transactions. Raises the first Lost, or
    # Unreachable or Refused.
    def unlock_all(locks)
      lost = locks.to_h { |lock| [lock, lock.lost] }.compare_by_identity
      errors = lost.values.compact.reject { |error| error.reason == :released }
      held = locks.uniq.select { |lock| lock.holding && (lost[lock].nil? || lost[lock].reason == :released) }
      held.each { |lock| lock.finish(:released) }
      begin
        @etcd.send_all(held.map(&:removal)) do |n, answer|
          lock = held[n]
          lock.holding = false
          reason = lock.missing(answer)
          # After an attempt without an answer, a lock that is not there is the one that it removed.
          errors << lock.loss(reason) if reason && lost[lock].nil? && answer.unanswered.zero?
        end
      rescue Unreachable, Refused
        raise if errors.empty?
      ensure
        locks.each { |lock| background.release(lock) }
      end
      raise errors[0] if errors.any?
    end

    def marshal_dump # :nodoc:
      raise TypeError, "a Client cannot be marshaled: it has connections and threads. Make one in the other process"
    end

    def inspect # :nodoc:
      "#<#{self.class} #{prefix.inspect}>"
    end

    # Closes the idle connections. It releases no locks, and the client may be used again.
    def close
      @etcd.close
    end

    # Renews locks, and ends those that turn out to be lost. The caller holds renewing of each.
    def renew(locks, limit: @timeout, kept: false, status: nil) # :nodoc:
      end_at = monotonic + [limit, @timeout].min
      until locks.empty?
        began = monotonic
        wall = Time.now.to_f
        # max_hold does not bound the renewals that the holder asks for.
        patience = locks.map { |lock| kept ? lock.terms.length(began - lock.acquired_at) : lock.terms.patience }
        locks.zip(patience) { |lock, p| lock.asked(began, wall, p) }
        end_at = [end_at, locks.map(&:deadline).max].min # afterwards they are lost
        again = []
        begin
          @etcd.send_all(locks.zip(patience).map { |lock, p| lock.renewal(wall, p, !kept, status) }, end_at, patience.min / 6.0) do |n, answer|
            if locks[n].renewed?(answer)
              locks[n].granted(began, wall, patience[n], !kept)
            elsif !locks[n].lost?
              again << locks[n]
            end
          end
        rescue Error => e
          locks.each { |lock| lock.failed(e) }
          raise
        end
        locks = again
      end
    end

    # The value and the revisions of a key, by the key; empty if it is not there.
    def read(key, end_at) # :nodoc:
      @etcd.send_all([{ success: [get(key)], failure: [] }], end_at) { |_, answer| return answer.found }
    end

    # A thread does not survive a fork, and the locks of the parent are not ours.
    def background # :nodoc:
      @background = Background.new(self, @etcd) unless @background.process == Process.pid
      @background
    end

    # So are the tickets of waiters.
    def tickets # :nodoc:
      @tickets = Tickets.new(@etcd) unless @tickets.process == Process.pid
      @tickets
    end

    # Reports whether waiters queue.
    def ordered? # :nodoc:
      monotonic >= @plain_until
    end

    # Has waiters do without tickets for a while, since etcd refuses them.
    def unordered(error) # :nodoc:
      @plain_until = monotonic + PLAIN
      @refused ||= error
    end

    # Says so, once, after etcd has accepted an attempt without.
    def accepted # :nodoc:
      warn "unlocker_mutex: no tickets under #{waiters}: #{@refused.message}: this process waits for locks in no order" if @refused && !@said
      @said ||= @refused
    end

    private

    def hold(lock)
      error = nil
      begin
        yield lock
      rescue Exception => error
        raise
      ensure
        begin
          lock.unlock
        rescue Error => e
          raise e unless error
        end
      end
    rescue Lost => e
      e.removal if e.name == lock.name # for its text
      raise
    end

    # Releases what a failed call has taken, or may take late.
    def releasing(locks)
      done = false
      unanswered = 1
      result = yield
      done = true
      result
    rescue Error => e
      unanswered = e.unanswered
      raise
    ensure
      unless done
        locks.each do |lock|
          lock.late += unanswered unless lock.holding
          background.release(lock)
        end
      end
    end
  end

  # One call for a lock, or for one of several slots, and its place among those that wait for the name. The queue never
  # decides who holds a lock: each transaction that takes one compares that it is free.
  class Claim # :nodoc:
    include Helpers

    def initialize(client, etcd, name, slots, terms)
      @client = client
      @etcd = etcd
      @tickets = client.tickets
      @name = valid(name)
      @slots = slots
      names = slots ? Array.new(slots) { |n| "#{@name}/#{n}" } : [@name]
      @names = names.to_h { |it| ["#{client.prefix}#{it}/uuid", it] }
      @terms = terms
      @uuid = SecureRandom.uuid
      @locks = Hash.new { |locks, it| locks[it] = Lock.new(client, it, terms, @uuid) }
      @slot = names.sample # the name of the next attempt
      @free = [] # those of its names that are free
      @line = "#{client.waiters}#{@name}//" # which the tickets of the name begin with
      @own = "#{@line}#{@uuid}"
      @since = Time.now.utc.iso8601(3)
      @left = false # whether its ticket may be in etcd
      @created = nil # the create revision of its ticket, if it has one
      @before = [] # the tickets before its own, the nearest first, at most two; nil if they are not known
      @head = nil # the first ticket, if that is before its own
      @revision = 0 # as of which it knows that
    end

    # Takes what is free. Raises Held if nothing is.
    def take(end_at)
      settle(end_at) { try }
    end

    # Takes the lock in its turn. Raises Held if the end comes before.
    def wait(end_at)
      @patient = true
      settle(end_at) do
        failed = nil
        pause = 0.05
        action = :try
        until @lock
          begin
            send(action)
            failed = nil
            watched = @lock || (action = follow)
          rescue Unreachable => e
            raise telling(failed, e) if monotonic >= @end_at && (failed || !@holder)

            failed = telling(failed, e)
            watched = nil
          end
          break if @lock || (@holder && monotonic >= @end_at)
          next pause = 0.05 if watched

          action = :look
          pause = [2 * pause, RETRY].min
          sleep([[pause * rand(0.5..1.0), @end_at - monotonic].min, 0].max)
        end
      end
    end

    private

    # Returns the lock that the block has taken. All else that it has left in etcd is deleted.
    def settle(end_at)
      @end_at = end_at
      yield
      raise Held.new(@holder, @name, @names.size) unless @lock

      taken = @lock
    ensure
      @locks.each_value { |lock| @client.background.release(lock) unless lock.equal?(taken) }
      @tickets.leave(self, @left ? @own : nil, doubtful?)
    end

    # Reports whether an attempt was not answered, and may be executed late.
    def doubtful?
      @locks.each_value.any? { |lock| lock.late.positive? }
    end

    # Takes the lock, if it is free and its turn. Without a ticket it queues otherwise.
    def try(passed = nil)
      look_around if @slots && !@created
      wanted = @lease
      loop do
        join(wanted) unless @created
        begin
          attempt(passed)
        rescue Refused => e
          raise unless @fair && [5, 7].include?(e.code)

          e.code == 7 ? @client.unordered(e) : @tickets.lost(@lease)
          @created = nil
          next
        end
        look_around if @created && @before.nil?
        return if @lock || @created || (!@fair && @free.empty?)

        wanted = true
        passed = nil
      end
    end

    # Gets a lease for the next attempt, if the client has one or one is wanted.
    def join(wanted)
      @before, @head = [], nil
      @fair = @patient && @client.ordered?
      @lease = @fair ? @tickets.join(self, wanted, @end_at) : nil
    rescue Refused => e
      @client.unordered(e)
      @fair = @lease = nil
    end

    def attempt(passed)
      @slot = @free.sample unless @free.empty? || @free.include?(@slot) # it stays where an attempt was not answered
      lock = @locks[@slot]
      unanswered = 1
      @etcd.send_all([in_turn(lock.acquisition, passed)], @end_at) do |_, answer|
        unanswered = 0
        @client.accepted unless @fair
        holder = lock.acquired(answer)
        @left &&= !answer.succeeded? || doubtful?
        holder ? seat(holder, answer) : @lock = lock
      end
    rescue Error => e
      unanswered = e.unanswered
      raise
    ensure
      lock.late += unanswered if unanswered
    end

    # Has an attempt take the lock only if no others wait, or by its ticket; with a lease it puts one.
    def in_turn(txn, passed)
      if @created
        txn[:compare] << mine
        txn[:compare] << { target: "VERSION", result: "GREATER", key: b64(passed), version: "0" } if passed # it is passed over only once
        txn[:success].concat([@own, *passed].map { |key| del(key) })
        txn[:failure] << get(@own)
      elsif @fair
        txn[:compare] << { target: "VERSION", result: "EQUAL", key: b64(@line), range_end: b64(after(@line)), version: "0" }
        if @lease
          @left = true
          ticket = { requestPut: { key: b64(@own), value: b64(said), lease: @lease } }
          txn[:failure].push(*earlier, get(@own), ticket)
        end
      end
      txn
    end

    def mine
      { target: "CREATE", result: "EQUAL", key: b64(@own), create_revision: @created.to_s }
    end

    # The end of the range of keys that begin so.
    def after(prefix)
      "#{prefix.delete_suffix('/')}0"
    end

    # What its ticket says.
    def said
      texts = { hostname: Socket.gethostname, pid: Process.pid.to_s, **@terms.fields.slice("owner", "purpose") }
      texts.transform_values! { |it| it.encode("UTF-8", invalid: :replace, undef: :replace)[0, 250] }
      JSON.generate({ uuid: @uuid, **texts, since: @since, slots: @slots, holds: @client.background.held }.compact)
    end

    # Reads the last two of the tickets before its own, and the first.
    def earlier
      range = { key: b64(@line), range_end: b64(after(@line)), keys_only: true, sort_target: "CREATE",
                max_create_revision: [@created.to_i - 1, 0].max.to_s } # 0 is no limit
      { "DESCEND" => 2, "ASCEND" => 1 }.map { |order, limit| { requestRange: { **range, sort_order: order, limit: limit } } }
    end

    # Notes its place after an attempt that has not taken the lock.
    def seat(holder, answer)
      @holder = holder unless @holder && holder.fields.empty?
      @revision = answer.revision unless @created || @slots
      saw(@slot, holder.fields["uuid"])
      found = answer.found
      if found[@own]
        @before = nil unless @created # an attempt that was not answered has put it
        @created = found[@own][1]
      elsif @created || !@lease
        @created = nil
      else
        @created = answer.revision
        line_up(found)
      end
    end

    # Notes the tickets before its own.
    def line_up(found)
      keys = found.keys.select { |key| key.start_with?(@line) && key != @own }.sort_by { |key| [found[key][1], key] }
      @before = keys.last(2).reverse
      @head = keys.first
    end

    # Notes who holds one of its names, or that it is free.
    def saw(name, uuid)
      @free -= [name]
      @free += [name] unless uuid
      @changed ||= name == @slot && uuid && uuid != @holder.fields["uuid"]
      @before, @head = [], nil if uuid && @before == [@line + uuid] # which was before this one
    end

    # Reads which of its names are free, and its place, if it still has one.
    def look_around
      gets = @names.each_key.map { |key| get(key) }
      gets = gets.each_slice(100).map { |group| { requestTxn: { success: group } } } if gets.size > 100
      txn = { compare: @created ? [mine] : [], success: @created ? earlier + gets : gets, failure: gets }
      @etcd.send_all([txn], @end_at) do |_, answer|
        found = answer.found
        @revision = answer.revision
        @free = @names.reject { |key, _| found[key] }.values
        answer.succeeded? && @created ? line_up(found) : @created = nil
      end
    rescue Refused => e
      raise unless @created && e.code == 7

      @created = nil # without the right to it
    end

    # Does so after something has changed, or nothing for long.
    def look
      look_around if @created
      @looked = true
      try unless @created
    end

    # Takes the lock instead of the first, which does not.
    def pass_over
      try(@head)
      @freed = nil # if another has passed it over, what is known is of before
    end

    # Reads who holds the lock.
    def describe
      @changed = false
      lock = @locks[@slot]
      @etcd.send_all([{ success: EXPECTED.map { |field| get(lock.key(field)) }, failure: [] }], @end_at) do |_, answer|
        holder = lock.holder(answer.found)
        @holder = holder unless holder.fields.empty?
      end
    end

    # Watches until something is to be done, and returns that; nil if the watch failed. The watch begins now, and what has
    # changed before is read again: etcd shows a watch what it already has only every 100 ms.
    def follow
      @quiet = monotonic + SILENCE * rand(1.0..1.25)
      at, action = plan
      return action if at <= monotonic

      since = @revision
      ranges = watched
      beginning = ranges.size
      good = @etcd.watch(ranges, [@quiet, @end_at].min) do |result|
        if result["created"] && (beginning -= 1).zero? && result["header"]["revision"].to_i > @revision
          look_around
          return :look if ranges != watched

          since = @revision
        end
        events = (result["events"] || []).select { |event| event["kv"]["mod_revision"].to_i > since }
        found = events.filter_map { |event| see(event) }.first
        return found if found

        at, action = plan
        return action if at <= monotonic

        at
      end
      action if good
    end

    # What to watch: the first two the lock, or all slots, and the others the ticket two before their own. All watch their own ticket.
    def watched
      slots = "#{@client.prefix}#{@name}/"
      place = @slots ? [slots, after(slots)] : [@names.key(@name)]
      place = [@before[1]] if @before.size > 1
      [place, *([[@own]] if @created)]
    end

    # Notes what an event says. Returns what is to be done at once.
    def see(event)
      key = bytes(event["kv"]["key"])
      uuid = text(event["kv"]["value"] || "") unless event["type"] == "DELETE"
      @revision = [@revision, event["kv"]["mod_revision"].to_i].max
      if key == @own || key == @before[1]
        :look unless uuid
      elsif @names[key]
        return :try if uuid == @uuid # by an attempt that was not answered

        saw(@names[key], uuid)
        nil
      end
    end

    # What is to be done next without another event, and when. The first takes a lock that is free. If it does not, the second
    # does, or any that has found that out.
    def plan
      steps = [[@quiet, :look]]
      steps << [@end_at - LAST, :describe] if @changed
      if @free.empty?
        @freed = nil
        return steps.min
      end

      @freed, @first, @looked, @scatter = monotonic, @head, false, rand(0.001..JITTER) if @freed.nil? || @first != @head
      steps << if !@created then [@freed + @scatter, :try]
               elsif @head.nil? then [@freed, :try]
               elsif @looked then [@freed + PASS, :pass_over]
               else [@freed + (@before.size == 1 ? GLANCE : PASS), :look]
               end
      steps.min
    end
  end

  # The lease of the tickets of a client: one for all its waits, which a thread keeps alive while one of them lasts. The thread
  # also deletes what they leave, and ends with the last of that. Locks have no lease.
  class Tickets # :nodoc:
    include Helpers

    attr_reader :process

    def initialize(etcd)
      @etcd = etcd
      @process = Process.pid
      @mutex = Mutex.new
      @changed = ConditionVariable.new
      @waits = {}.compare_by_identity
      @left = {} # until when tickets are deleted that waits have left
      @kept = 0 # when the lease was last kept alive
    end

    # Returns the lease for a wait, which is to leave it; nil if there is none, and none is wanted.
    def join(wait, wanted, end_at)
      began = monotonic
      lease = @etcd.grant(TICKET, [end_at, began + ATTEMPT].min) if wanted && !live
      @mutex.synchronize do
        @lease, @kept = lease, began if lease && !live
        next unless live

        @waits[wait] = true
        nudge
        @lease
      end
    end

    # Ends a wait. If its ticket may be in etcd it is deleted, and again while a late attempt may put it.
    def leave(wait, ticket, late)
      return unless @process == Process.pid

      @mutex.synchronize do
        @waits.delete(wait)
        next unless ticket

        @left[ticket] = late ? monotonic + TICKET : 0
        @new = true
        nudge
      end
    end

    # Notes that etcd does not know the lease.
    def lost(lease)
      @mutex.synchronize { @lease = nil if @lease == lease }
    end

    private

    def live
      @lease && monotonic < @kept + TICKET / 2.0
    end

    def nudge
      @thread&.alive? ? @changed.signal : @thread = start("unlocker-mutex-tickets") { run }
    end

    def run
      loop do
        lease, tickets = @mutex.synchronize do
          @changed.wait(@mutex, RETRY) unless @new
          @new = false
          return @thread = nil if @waits.empty? && @left.empty?

          [(@lease if @waits.any? && monotonic >= @kept + TICKET / 3.0), @left.keys]
        end
        keep(lease) if lease
        delete(tickets) if tickets.any?
      rescue Etcd::Overdue
        next # as in Background
      end
    end

    def keep(lease)
      began = monotonic
      alive = @etcd.keep(lease, began + TICKET / 5.0)
      @mutex.synchronize { alive ? @kept = began : @lease = nil if @lease == lease }
    rescue Error
      nil # it is tried again
    end

    def delete(tickets)
      @etcd.send_all(tickets.map { |key| { success: [del(key)], failure: [] } }, monotonic + TICKET / 5.0) { nil }
      @mutex.synchronize { @left.delete_if { |ticket, until_at| tickets.include?(ticket) && monotonic >= until_at } }
    rescue Refused
      return tickets.each { |ticket| delete([ticket]) } if tickets.size > 1

      @mutex.synchronize { @left.delete(tickets[0]) } # its lease ends
    rescue Unreachable
      nil # it is tried again
    end
  end
  private_constant :Claim, :Tickets


  # The thread of a client that renews locks with max_hold, writes stacks at alert_at, and releases
  # what a failed call may have left. It starts when there is work, and ends some seconds after the
  # last of it.
  class Background # :nodoc:
    include Helpers

    attr_reader :process

    def initialize(client, etcd)
      @client = client
      @etcd = etcd
      @process = Process.pid
      @mutex = Mutex.new
      @changed = ConditionVariable.new
      @locks = {}.compare_by_identity
      @leftovers = {}.compare_by_identity # when the next attempt is due, and the pause after it
      @wakes = Float::INFINITY
    end

    # The uuids of the locks that this flow of work holds, as the ticket of a wait says them.
    def held
      @mutex.synchronize { @locks.keys }.select { |lock| lock.fiber == Fiber.current && !lock.lost? }.first(MAX_HOLDS).map(&:uuid)
    end

    # Looks after the lock until it ends. To be called again when its times have moved.
    def add(lock)
      @mutex.synchronize do
        @locks[lock] = true
        nudge([lock.renew_at, lock.alert_at].min)
        next if @ear&.alive?

        @ear = start("unlocker-mutex-questions") { listen }
      end
    end

    # Releases the lock, if it is held, as soon as etcd allows it, and what late attempts take.
    def release(lock)
      return unless lock.process == Process.pid

      lock.finish(:released)
      @mutex.synchronize do
        next if @leftovers[lock] || !lock.left?

        @leftovers[lock] = [0, JITTER]
        nudge(0)
      end
    end

    private

    def nudge(at)
      if !@thread&.alive?
        @thread = start("unlocker-mutex") { run }
      elsif at < @wakes
        @changed.signal
      end
    end

    def run
      loop do
        locks, leftovers = @mutex.synchronize { due || (@thread = nil) }
        return unless locks

        renew(locks)
        write(locks)
        release_again(leftovers)
      rescue Etcd::Overdue
        next # Timeout of Ruby 3.1 may raise after its call, which would end this thread
      end
    end

    # Waits until something is to be done. Returns nil if there has been nothing for a while.
    def due
      @wakes = next_at
      idle = @wakes.infinite? && @locks.empty?
      @changed.wait(@mutex, [[@wakes - monotonic, idle ? IDLE : SILENCE].min, 0.001].max)
      return if idle && next_at.infinite? && @locks.empty?

      @wakes = 0 # no need to wake it
      [@locks.keys, @leftovers.select { |_, (at, _)| at <= monotonic }.keys]
    end

    # When something is to be done. Forgets the locks that have ended.
    def next_at
      @locks.delete_if { |lock, _| lock.lost? }
      @leftovers.keep_if { |lock, _| lock.left? }
      [*@locks.keys.flat_map { |lock| [lock.renew_at, lock.alert_at, lock.answer_at] }, *@leftovers.values.map(&:first), Float::INFINITY].min
    end

    def renew(locks)
      now = monotonic
      locks = locks.reject(&:lost?) # after a suspension they may be
      return if locks.none? { |lock| lock.renew_at <= now }

      # What is due soon goes along. A lock that its holder is renewing need not be renewed here.
      locks = locks.select { |lock| lock.renew_at <= now + lock.terms.patience / 6.0 && lock.renewing.try_lock }
      return if locks.empty?

      begin
        @client.renew(locks, limit: locks.map { |lock| lock.terms.patience }.min / 3.0, kept: true)
      rescue Error
        locks.each { |lock| lock.renew_at = monotonic + [RETRY, lock.terms.patience / 10.0].min }
      ensure
        locks.each { |lock| lock.renewing.unlock }
      end
    end

    # Writes stacks at alert_at, and answers. A failed answer is not repeated: whoever asked asks again.
    def write(locks)
      now = monotonic
      due = locks.select { |lock| [lock.alert_at, lock.answer_at].min <= now && !lock.lost? }
      alerts = due.select { |lock| lock.alert_at <= now }
      notes = due.map { |lock| lock.note(now) }
      alerts.each { |lock| lock.alert_at = Float::INFINITY }
      @etcd.send_all(notes, now + RETRY) { nil }
    rescue Error
      alerts.each { |lock| lock.alert_at = [lock.alert_at, now + 2 * RETRY].min }
    end

    # Follows the questions to all holders, by one watch, as long as there are locks.
    def listen
      pause = SETTLED
      loop do
        sleep pause
        break unless @mutex.synchronize { @locks.keys.any? { |lock| !lock.lost? } || (@ear = nil) }

        pause = hear ? 0 : RETRY
      rescue Refused => e
        pause = e.code == 7 ? DEAF : RETRY
        warn "unlocker_mutex: no right to read questions under #{@client.questions}: unlocker ask gets no answers from this process" if e.code == 7 && !@deaf
        @deaf ||= e.code == 7
      rescue Error, Etcd::Overdue # as in run
        pause = RETRY
      end
    end

    # Hears questions for a while. Returns false if the watch failed.
    def hear
      prefix = @client.questions
      last = "#{prefix[0..-2]}0"
      found, revision = @etcd.list(prefix, last)
      asked(found)
      end_at = monotonic + SILENCE
      @etcd.watch([[prefix, last]], end_at, revision + 1) do |result|
        asked((result["events"] || []).reject { |event| event["type"] == "DELETE" }.map { |event| text(event["kv"]["key"]) })
        end_at
      end
    end

    def asked(keys)
      @mutex.synchronize do
        @locks.each_key do |lock|
          nudge(lock.ask(monotonic)) if keys.include?("#{@client.questions}#{lock.name}//#{lock.uuid}")
        end
      end
    end

    def release_again(locks)
      @etcd.send_all(locks.map(&:removal), monotonic + RETRY) do |n, answer|
        locks[n].late -= 1 if answer.succeeded? && !locks[n].holding
        locks[n].holding = false
      end
    rescue Error
      nil # it is tried again
    ensure
      @mutex.synchronize do
        locks.each { |lock| @leftovers[lock] = [monotonic + @leftovers[lock][1], [2 * @leftovers[lock][1], LONGEST].min] }
      end
    end
  end
  private_constant :Background

  # Requests to etcd's JSON gateway, with failover, login and batches.
  class Etcd # :nodoc:
    include Helpers

    # An endpoint did not answer, or asked to try again; executed says whether it may have done what was asked, silent
    # whether it took a new connection and then said nothing.
    class Failure < StandardError
      attr_reader :executed, :silent

      def initialize(message, executed, silent = false)
        super(message)
        @executed = executed
        @silent = silent
      end
    end

    # Not Timeout::Error, so that no code of Net::HTTP rescues it.
    class Overdue < Exception; end

    TROUBLE = [SystemCallError, SocketError, IOError, OpenSSL::SSL::SSLError, Timeout::Error, Net::HTTPBadResponse, Net::ProtocolError, JSON::ParserError, Overdue].freeze

    def initialize(endpoints, user, password, tls, timeout)
      @endpoints = endpoints.map { |text| endpoint(text) }
      raise ArgumentError, "ca_file and cert_file need endpoints that begin with https://" if (tls[:ca_file] || tls[:cert_file]) && @endpoints.none?(URI::HTTPS)

      @tls = tls
      read_certificate
      @user = user
      @password = password
      @timeout = timeout
      @attempt = [ATTEMPT, timeout.fdiv(endpoints.size.clamp(2, 3))].min
      @current = 0
      @token = user.empty? ? "" : nil # nil: to be asked for; "": none is needed
      @login = -Float::INFINITY # when the last one began, whatever became of it
      @idle = Hash.new { |idle, endpoint| idle[endpoint] = [] }
      @mutex = Mutex.new # guards @idle and @login
    end

    # Executes independent transactions, many in one as far as etcd's limits allow, each within the
    # timeout. Yields the index and the Answer.
    def send_all(txns, end_at = Float::INFINITY, attempt = Float::INFINITY)
      n = -1
      batches(txns).each do |batch|
        body = batch.size == 1 ? batch[0] : { success: batch.map { |txn| { requestTxn: txn } } }
        answer, unanswered = call("/v3/kv/txn", body, [end_at, monotonic + @timeout].min, attempt)
        parts = batch.size == 1 ? [answer] : answer["responses"].map { |response| response["response_txn"] }
        revision, cluster = answer["header"].values_at("revision", "cluster_id")
        parts.each { |part| yield n += 1, Answer.new(part, revision.to_i, cluster, unanswered) }
      end
    end

    # The keys of a range, and the revision.
    def list(key, range_end)
      answer, = call("/v3/kv/range", { key: b64(key), rangeEnd: b64(range_end), keysOnly: true }, monotonic + @timeout, Float::INFINITY)
      [(answer["kvs"] || []).map { |kv| text(kv["key"]) }, answer["header"]["revision"].to_i]
    end

    # The id of a new lease for so many seconds.
    def grant(seconds, end_at)
      call("/v3/lease/grant", { TTL: seconds }, end_at, Float::INFINITY)[0]["ID"]
    end

    # Keeps a lease alive. Reports whether it was.
    def keep(lease, end_at)
      call("/v3/lease/keepalive", { ID: lease }, end_at, Float::INFINITY)[0].key?("TTL")
    end

    # Yields what a watch of keys and ranges (a key, and its end) shows, after a revision, or from now on. The block returns until
    # when to wait for more. Returns true when that or the limit is over, and false if the watch failed.
    def watch(ranges, limit, revision = nil)
      endpoint = @endpoints[@current]
      streaming = false
      Timeout.timeout([limit - monotonic, 0.001].max, Overdue) do
        follow(endpoint, ranges, revision, [limit, monotonic + @attempt].min) do |http, result|
          streaming = true
          http.read_timeout = [yield(result) - monotonic, 0.001].max
        end
      end
      false
    rescue Net::ReadTimeout, Overdue
      advance(endpoint) unless streaming
      streaming
    rescue Failure, *TROUBLE
      advance(endpoint)
      false
    end

    def close
      @mutex.synchronize { @idle.each_value { |list| discard(*list.shift(list.size).map(&:last)) } }
    end

    private

    def endpoint(text)
      url = URI.parse(text.include?("://") ? text : "http://#{text}")
      raise URI::InvalidURIError unless url.is_a?(URI::HTTP) && url.hostname.to_s != "" && ["", "/"].include?(url.path) && !url.query && !url.userinfo

      url.port = 2379 unless text.match?(/:\d+\/?\z/)
      url
    rescue URI::InvalidURIError
      raise ArgumentError, "endpoint #{text.inspect} is not a URL of the form https://host:port"
    end

    def read_certificate
      raise ArgumentError, "ca_file #{@tls[:ca_file].inspect} cannot be read" unless @tls[:ca_file].nil? || File.readable?(@tls[:ca_file])
      return unless @tls[:cert_file]

      pem = File.read(@tls[:cert_file])
      @certificates = pem.scan(/-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----/m).map { |text| OpenSSL::X509::Certificate.new(text) }
      @key = OpenSSL::PKey.read(@tls[:key_file] ? File.read(@tls[:key_file]) : pem)
    end

    # Repeats the request until it is answered. Returns also how many attempts before were not, and may have been executed.
    def call(path, body, end_at, attempt)
      renewed = false
      failures = unanswered = 0
      failed = nil
      loop do
        endpoint = @endpoints[@current]
        deadline = [end_at, monotonic + [attempt, @attempt].min].min
        begin
          return [exchange(endpoint, request(path, body, headers(endpoint, deadline)), deadline), unanswered]
        rescue Failure => e
          unanswered += 1 if e.executed
          failed = telling(failed, e)
          deadline = monotonic + [attempt, @attempt].min
          renew(endpoint, deadline) if e.silent && deadline < end_at
        rescue Refused => e
          e.unanswered = unanswered
          raise if renewed || @user.empty? || !unauthenticated?(e)

          @token = nil
          renewed = true
          next
        end
        advance(endpoint)
        failures += 1
        pause = failures < [2, @endpoints.size].max ? 0 : rand(0.05..0.1) * [failures, 10].min
        if monotonic + pause >= end_at
          raise Unreachable.new("etcd does not answer: #{failed.message}").tap { |e| e.unanswered = unanswered }, cause: failed.cause
        end

        sleep(pause)
      end
    end

    def advance(failed)
      @current = (@current + 1) % @endpoints.size if @endpoints[@current].equal?(failed)
    end

    def request(path, body, headers)
      Net::HTTP::Post.new(path, { "Content-Type" => "application/json", "Accept-Encoding" => "identity", **headers }).tap { |post| post.body = (body.is_a?(Array) ? body : [body]).map { |it| JSON.generate(it) }.join }
    end

    def headers(endpoint, deadline)
      token = @token || authenticate(endpoint, deadline)
      token.empty? ? {} : { "Authorization" => token }
    end

    def authenticate(endpoint, deadline)
      @mutex.synchronize { @login = monotonic }
      @token = begin
        exchange(endpoint, request("/v3/auth/authenticate", { name: @user, password: @password }, {}), deadline)["token"]
      rescue Refused => e
        raise unless e.message.include?("authentication is not enabled")

        ""
      rescue Failure => e
        raise Failure.new(e.message, false), cause: e.cause
      end
    end

    # Logs in again if the token may be of before a restore, which etcd neither accepts nor refuses. It may also be good, and
    # etcd slow.
    def renew(endpoint, deadline)
      token = @token
      due = @mutex.synchronize { !token.nil? && !token.empty? && monotonic > @login + LOGIN && (@login = monotonic) }
      authenticate(endpoint, deadline) if due
    rescue Refused, Failure
      nil
    end

    # Yields the connection and each answer, until the stream ends.
    def follow(endpoint, ranges, revision, deadline)
      creates = ranges.map { |key, range_end| { createRequest: { key: b64(key), rangeEnd: range_end && b64(range_end), startRevision: revision&.to_s }.compact } }
      # Without a leader the stream must end, not fall silent.
      post = request("/v3/watch", creates, headers(endpoint, deadline).merge("Grpc-Metadata-Hasleader" => "true"))
      http = connect(endpoint, deadline)
      buffer = +""
      http.request(post) do |response|
        return unless response.code == "200"

        response.read_body do |chunk|
          buffer << chunk
          while (line = buffer.slice!(/\A.*\n/))
            result = JSON.parse(line)["result"]
            return if result.nil? || result["canceled"]

            yield http, result
          end
        end
      end
    ensure
      discard(http)
    end

    # Makes one attempt at one endpoint. Net::HTTP does not retry.
    def exchange(endpoint, post, deadline)
      http = nil
      connected = done = fresh = false
      remaining = deadline - monotonic
      raise Overdue unless remaining.positive?

      status, answer = Timeout.timeout(remaining, Overdue) do
        http = idle(endpoint) || ((fresh = true) && connect(endpoint, deadline))
        connected = true
        http.read_timeout = http.write_timeout = remaining
        response = http.request(post)
        [response.code.to_i, object(response)]
      end
      done = true
      judge(endpoint, status, answer)
    rescue *TROUBLE => e
      close # the others are as old
      late = [Overdue, Timeout::Error].any? { |kind| e.is_a?(kind) }
      text = late ? "timed out" : shown(e.message)
      raise Failure.new("#{endpoint}: #{text}#{hint(e, endpoint) if fresh}", connected, late && fresh && connected)
    ensure
      done ? @mutex.synchronize { @idle[endpoint] << [Process.pid, monotonic, http] } : discard(http)
    end

    # Reads an answer of etcd. Raises JSON::ParserError if it is not one.
    def object(response)
      if response.code == "400" && response.body.start_with?("CommonName of client")
        message = "etcd has authentication enabled, and its JSON gateway then refuses client certificates with a CN: use one without, and user and password"
        return { "code" => 3, "message" => message }
      end

      answer = begin
        JSON.parse(response.body)
      rescue JSON::ParserError
        nil
      end
      answer = answer["result"] || answer if answer.is_a?(Hash) # of a stream
      return answer if answer.is_a?(Hash) && (response.code != "200" || answer["header"])

      gateway = ", there is no JSON gateway (etcd needs --enable-grpc-gateway)" if response.code == "404"
      raise JSON::ParserError, "not an answer of etcd#{gateway}: HTTP #{response.code}: #{response.body.byteslice(0, 200).scrub.strip}"
    end

    # What may be wrong if a new connection ends without an answer.
    def hint(error, endpoint)
      case error
      when Errno::ECONNRESET, Errno::EPIPE, EOFError, Net::HTTPBadResponse then nil
      when OpenSSL::SSL::SSLError then return unless error.message.match?(/unexpected eof|wrong version/)
      else return
      end
      use = endpoint.is_a?(URI::HTTPS) ? "not use TLS, or ask for a client certificate" : "require https://"
      " (etcd may #{use}, or have its JSON gateway elsewhere: see its --listen-client-http-urls)"
    end

    def judge(endpoint, status, answer)
      return answer if status == 200

      code = answer["code"].to_i
      message = shown((answer["message"] || answer["error"]).to_s)
      raise Failure.new("#{endpoint}: #{message}", true) if status >= 500 || [1, 4].include?(code) || message.include?("too many requests")

      raise Refused.new(code, message)
    end

    def unauthenticated?(refused)
      refused.code == 16 || refused.message.match?(/user name is empty|revision of auth store is old/)
    end

    def connect(endpoint, deadline)
      http = Net::HTTP.new(@tls[:server_name] || endpoint.hostname, endpoint.port, nil) # without a proxy
      http.ipaddr = endpoint.hostname if @tls[:server_name]
      http.max_retries = 0
      http.keep_alive_timeout = 2 * IDLE # it would connect again by itself
      http.open_timeout = http.ssl_timeout = http.read_timeout = http.write_timeout = [deadline - monotonic, 0.001].max
      if endpoint.is_a?(URI::HTTPS)
        http.use_ssl = true
        http.ca_file = @tls[:ca_file]
        http.cert, *http.extra_chain_cert = @certificates if @certificates
        http.key = @key
      end
      http.start
    end

    # The connections of the parent of a fork are dropped, not closed: a close would be sent.
    def idle(endpoint)
      @mutex.synchronize do
        while (process, since, http = @idle[endpoint].pop)
          next unless process == Process.pid
          return http if monotonic - since < IDLE && http.started?

          discard(http)
        end
      end
    end

    def discard(*connections)
      connections.each do |http|
        http.finish if http&.started?
      rescue *TROUBLE
        nil
      end
    end

    def batches(txns)
      most = size = 0
      txns.each_with_object([[]]) do |txn, batches|
        ops = [txn[:success].size, txn[:failure].size].max
        length = JSON.generate(txn).size
        if batches.last.any? && (batches.last.size + 1 + [most, ops].max > MAX_OPS || size + length > MAX_BYTES)
          batches << []
          most = size = 0
        end
        batches.last << txn
        most = [most, ops].max
        size += length
      end.reject(&:empty?)
    end
  end
  private_constant :Etcd
end
